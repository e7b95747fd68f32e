-- Cancel some more jobs of a cancelled batch: waiting ones end at once, for running ones a cancel is requested. Locked in id order; rows that other
-- sessions hold are left for the next call. Index: job_batch. Returns how many were cancelled or requested, and whether any is left.
WITH picked AS MATERIALIZED (
    SELECT j.id
      FROM pgworkers.job j
     WHERE j.batch_id = %(id)s::bigint AND j.cancel_at IS NULL
     ORDER BY j.id
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
),
cancelled AS MATERIALIZED (
    SELECT c.answer FROM pgworkers.cancel_many(ARRAY(SELECT id FROM picked), reason => 'its batch was cancelled') c
)
SELECT (SELECT count(*) FROM cancelled WHERE answer IS NOT NULL),
       EXISTS (SELECT FROM pgworkers.job j
                WHERE j.batch_id = %(id)s::bigint AND j.cancel_at IS NULL AND j.id <> ALL (ARRAY(SELECT id FROM picked)))
