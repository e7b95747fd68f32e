-- How many sessions hold the leader's lock of this schema (see job/lead_try.sql). No guard: it only reads.
SELECT count(*)
  FROM pg_locks l
 WHERE l.locktype = 'advisory' AND l.classid = 1885828967 AND l.objid = 'pgworkers'::regnamespace::oid AND l.objsubid = 1
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND l.granted
