-- A frozen leader keeps its session: its kernel still acknowledges. End the session that holds the lock when no host that
-- says it leads has renewed lately. Guard: a session younger than the silence is left alone, it may just have won. `clock` is the time as the
-- asking host reckons it: a clock that was set forward deposes nobody.
SELECT l.pid, pg_terminate_backend(l.pid)
  FROM pg_catalog.pg_locks l
  JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
   AND l.classid = 1885828967::oid AND l.objid = 'pgworkers'::regnamespace::oid
   AND l.pid <> pg_backend_pid()
   AND a.state_change < least(now(), %(clock)s::timestamptz) - make_interval(secs => %(silence)s::double precision)
   AND NOT EXISTS (SELECT FROM pgworkers.host h
                    WHERE h.leader AND h.renewed_at > least(now(), %(clock)s::timestamptz)
                                                    - make_interval(secs => %(silence)s::double precision))
