-- The sessions that the session `pid` waits for: those that hold the lock (`is_holder`), and those that wait for it in front of us. A prepared
-- transaction has the pid 0 and no session.
SELECT b.pid, a.application_name AS application, a.state, extract(epoch FROM clock_timestamp() - a.query_start)::double precision AS query_age,
       EXISTS (SELECT FROM pg_locks ours JOIN pg_locks theirs
                   ON (ours.locktype, ours.database, ours.relation, ours.page, ours.tuple, ours.virtualxid, ours.transactionid,
                       ours.classid, ours.objid, ours.objsubid)
                      IS NOT DISTINCT FROM
                      (theirs.locktype, theirs.database, theirs.relation, theirs.page, theirs.tuple, theirs.virtualxid,
                       theirs.transactionid, theirs.classid, theirs.objid, theirs.objsubid)
                WHERE ours.pid = %(pid)s::integer AND NOT ours.granted
                  AND coalesce(theirs.pid, 0) = b.pid AND theirs.granted) AS is_holder
  FROM (SELECT DISTINCT unnest(pg_blocking_pids(%(pid)s::integer)) AS pid) b
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid
 ORDER BY is_holder DESC, a.query_start
 LIMIT 5
