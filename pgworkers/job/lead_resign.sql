-- The host's row stops saying that it leads, and the lock is given back.
WITH told AS MATERIALIZED (
    UPDATE pgworkers.host h SET leader = false WHERE h.id = %(host)s::uuid AND h.leader RETURNING h.id
)
SELECT pg_advisory_unlock((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint), (SELECT count(*) FROM told)
