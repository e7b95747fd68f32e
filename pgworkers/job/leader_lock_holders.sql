-- Sessions that hold the leader's lock of this schema without holding the term: any login can. No guard: it only reads.
SELECT l.pid, coalesce(a.usename::text, '?'), coalesce(a.application_name, '')
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
   AND l.classid = 1885828967::oid AND l.objid = 'pgworkers'::regnamespace::oid
   AND NOT EXISTS (SELECT FROM pgworkers.leader t WHERE t.pid = l.pid AND t.host IS NOT NULL)
 ORDER BY l.pid
 LIMIT 10
