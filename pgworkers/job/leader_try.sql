-- Take the term of leadership, if it is free. The row of `leader` decides. It is free if its host resigned, if the session that holds it is
-- gone, if it is this host's own, and (with `may_depose`) if it ran out by the database's clock. The advisory lock is the fast path: a session
-- that gets the lock of a leader that held it knows that the leader's session is gone. Any login can hold the lock, so a host can take the term
-- without it. Guard: the number of the term that was read, so one of several hosts wins. `clock` is the database's time as the asking host
-- estimates it: setting the clock forward deposes no leader. Index: the primary key.
-- A deposed leader still has `leader` on its row; the new one removes it.
WITH held AS MATERIALIZED (
    SELECT l.term, l.host, l.pid, l.session_start, l.locked,
           l.valid_until <= least(now(), %(clock)s::timestamptz) AND %(may_depose)s::boolean AS ran_out,
           l.host IS NULL OR l.host = %(host)s::uuid
           OR NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.pid = l.pid) AS free
      FROM pgworkers.leader l
),
lock AS MATERIALIZED (
    SELECT CASE WHEN coalesce((SELECT h.locked OR h.ran_out OR h.free FROM held h), true)
                THEN pg_try_advisory_lock((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint)
                ELSE false END AS mine
),
won AS (
    INSERT INTO pgworkers.leader AS l (host, pid, session_start, locked, valid_until)
    SELECT %(host)s::uuid, a.pid, a.backend_start, lock.mine, now() + make_interval(secs => %(seconds)s::double precision)
      FROM lock
      JOIN pg_catalog.pg_stat_activity a ON a.pid = pg_backend_pid()
     WHERE coalesce((SELECT h.free OR h.ran_out OR (h.locked AND lock.mine) FROM held h), true)
    ON CONFLICT (id) DO UPDATE
       SET host = excluded.host, pid = excluded.pid, session_start = excluded.session_start, locked = excluded.locked,
           valid_until = excluded.valid_until, term = l.term + 1
     WHERE l.term = (SELECT h.term FROM held h)
    RETURNING l.term
),
flagged AS (
    UPDATE pgworkers.host h
       SET leader = (h.id = %(host)s::uuid)
     WHERE EXISTS (SELECT FROM won) AND h.leader <> (h.id = %(host)s::uuid)
    RETURNING h.id
)
SELECT (SELECT term FROM won), lock.mine, h.locked, h.pid, h.session_start, h.ran_out AND NOT h.free,
       (SELECT count(*) FROM flagged)
  FROM lock LEFT JOIN held h ON true
