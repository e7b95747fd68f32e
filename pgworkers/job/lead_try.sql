-- Take the leader's lock of this schema, if nobody has it; its key is made of the schema's oid, so two installs in one
-- database have a leader each. A frozen leader that was deposed still has `leader` on its row: the new one takes it off.
WITH won AS MATERIALIZED (
    SELECT pg_try_advisory_lock((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint) AS mine
),
told AS (
    UPDATE pgworkers.host h
       SET leader = (h.id = %(host)s::uuid)
     WHERE (SELECT mine FROM won) AND h.leader <> (h.id = %(host)s::uuid)
    RETURNING h.id
)
SELECT mine, (SELECT count(*) FROM told) FROM won
