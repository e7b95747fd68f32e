-- What enqueue-only roles may enqueue, and how many jobs wait under each bound. A small table; index: job_enqueue_grant.
SELECT g.id, g.role, g.queue, g.task, g.max_waiting, g.may_replace, g.granted_by, g.granted_at,
       CASE WHEN g.max_waiting IS NOT NULL THEN
           (SELECT count(*) FROM pgworkers.job j WHERE j.enqueue_grant_id = g.id AND j.host IS NULL) END,
       EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = g.role)
  FROM pgworkers.enqueue_grant g
 ORDER BY g.role, g.queue, g.task
