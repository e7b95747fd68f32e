-- Give up leadership: the term if it is still this host's, the flag on its row, and the lock. Guard: host, session and number of the term.
-- Index: the primary keys.
WITH given_up AS MATERIALIZED (
    UPDATE pgworkers.leader l
       SET host = NULL, locked = false, valid_until = now()
     WHERE l.host = %(host)s::uuid AND l.pid = pg_backend_pid() AND l.term = %(term)s::bigint
    RETURNING l.term
),
flagged AS MATERIALIZED (
    UPDATE pgworkers.host h SET leader = false WHERE h.id = %(host)s::uuid AND h.leader RETURNING h.id
)
SELECT (SELECT count(*) FROM given_up), (SELECT count(*) FROM flagged), pg_advisory_unlock_all()
