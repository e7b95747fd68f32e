-- Delete the rows of hosts that have been gone for ten leases and own nothing; one portion of a walk in the order of ids. Reads at most
-- `portion` rows. `clock` is the database's time as the asking host estimates it. Guard: no running job (index job_running), under the row
-- lock, which skips rows that others hold. OFFSET keeps that check a probe for each host: as a join it could begin with all jobs that ever ran
-- (docs/adr/05).
WITH page AS MATERIALIZED (
    SELECT h.id, h.renewed_at < least(now(), %(clock)s::timestamptz) - 10 * h.lease AS is_old
      FROM pgworkers.host h
     WHERE h.id > %(after)s::uuid
     ORDER BY h.id
     LIMIT %(portion)s::bigint
),
locked AS MATERIALIZED (
    SELECT h.id FROM pgworkers.host h WHERE h.id = ANY (ARRAY(SELECT p.id FROM page p WHERE p.is_old)) FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgworkers.host h
     WHERE h.id = ANY (ARRAY(SELECT l.id FROM locked l)) AND h.renewed_at < least(now(), %(clock)s::timestamptz) - 10 * h.lease
       AND NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.host = h.id OFFSET 0)
    RETURNING h.id
)
SELECT CASE WHEN (SELECT count(*) FROM page) >= %(portion)s::bigint THEN (SELECT p.id::text FROM page p ORDER BY p.id DESC LIMIT 1) END,
       (SELECT count(*) FROM gone)
