-- The sessions that the session `pid` waits for. A prepared transaction has the pid 0 and no session.
SELECT b.pid, a.application_name, a.state, extract(epoch FROM clock_timestamp() - a.query_start)::double precision
  FROM (SELECT DISTINCT unnest(pg_blocking_pids(%(pid)s::integer)) AS pid) b
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid
 ORDER BY a.query_start
