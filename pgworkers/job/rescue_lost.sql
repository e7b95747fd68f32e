-- The jobs that rescue.sql would take, for the case that it cannot take them in one statement. Index: job_running, in the
-- gaps between the living. It only reads; the guard is in the rescue of each.
WITH living AS (
    SELECT h.id FROM pgworkers.host h WHERE h.renewed_at >= now() - h.lease
    UNION
    SELECT %(host)s::uuid
    UNION
    SELECT unnest('{00000000-0000-0000-0000-000000000000,ffffffff-ffff-ffff-ffff-ffffffffffff}'::uuid[])
),
gaps AS MATERIALIZED (
    SELECT l.id AS above, lead(l.id) OVER (ORDER BY l.id) AS below FROM living l
)
SELECT held.id
  FROM gaps g
 CROSS JOIN LATERAL (
       SELECT j.id FROM pgworkers.job j WHERE j.host > g.above AND j.host < g.below ORDER BY j.host LIMIT %(limit)s::bigint) held
 ORDER BY held.id
 LIMIT %(limit)s::bigint
