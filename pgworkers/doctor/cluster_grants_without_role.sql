-- Roles that have enqueue grants and do not exist, with the ids of the grants. Small tables, read as a whole. No guard: it only reads.
SELECT g.role, array_agg(g.id ORDER BY g.id)
  FROM pgworkers.enqueue_grant g
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = g.role)
 GROUP BY g.role
 ORDER BY g.role
