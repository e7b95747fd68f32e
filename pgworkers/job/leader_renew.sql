-- Renew the term of the leading host, and try to get the lock if another session held it until now. Guard: host, session and number of the
-- term. No row means that another host leads. A term that ran out and was not taken by another host is renewed, too. Sets the flag on the
-- host's row, also if that row was inserted again. Index: the primary keys.
WITH lock AS MATERIALIZED (
    SELECT l.term, CASE WHEN l.locked THEN true
                        ELSE pg_try_advisory_lock((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint)
                   END AS mine
      FROM pgworkers.leader l
     WHERE l.host = %(host)s::uuid AND l.pid = pg_backend_pid() AND l.term = %(term)s::bigint
),
renewed AS (
    UPDATE pgworkers.leader l
       SET valid_until = now() + make_interval(secs => %(seconds)s::double precision), locked = lock.mine
      FROM lock
     WHERE l.host = %(host)s::uuid AND l.pid = pg_backend_pid() AND l.term = lock.term
    RETURNING l.locked
),
flagged AS (
    UPDATE pgworkers.host h
       SET leader = (h.id = %(host)s::uuid)
     WHERE EXISTS (SELECT FROM renewed) AND h.leader <> (h.id = %(host)s::uuid)
    RETURNING h.id
)
SELECT r.locked, (SELECT count(*) FROM flagged) FROM renewed r
