-- Forget dead jobs for good, with their post-mortems. Index: the primary keys. Guard: still dead under the row lock, so a job
-- that an operator has just put back is never deleted; rows are locked in id order.
WITH dead AS MATERIALIZED (
    SELECT h.id, h.finished_at
      FROM pgworkers.history h
     WHERE h.id = ANY (%(ids)s::bigint[]) AND h.state = 'dead'
     ORDER BY h.id
       FOR UPDATE
),
gone AS (
    DELETE FROM pgworkers.history h
     USING dead d
     WHERE h.id = d.id AND h.finished_at = d.finished_at AND h.state = 'dead'
    RETURNING h.id
),
forgotten AS (
    DELETE FROM pgworkers.attempt a WHERE a.job_id IN (SELECT id FROM gone)
)
SELECT id FROM gone ORDER BY id
