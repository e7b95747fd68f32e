-- Some more jobs of a cancelled batch end: those that wait at once, those that run are flagged. Locked in id order; what others
-- hold just now is left for the next look. Index: job_batch. Answers how many were ended or flagged, and whether any is left.
WITH picked AS MATERIALIZED (
    SELECT j.id
      FROM pgworkers.job j
     WHERE j.batch_id = %(id)s::bigint AND j.cancel_at IS NULL
     ORDER BY j.id
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
),
wished AS MATERIALIZED (
    SELECT c.answer FROM pgworkers.call_off(ARRAY(SELECT id FROM picked), 'cancelled', reason => 'its batch was cancelled') c
)
SELECT (SELECT count(*) FROM wished WHERE answer IS NOT NULL),
       EXISTS (SELECT FROM pgworkers.job j
                WHERE j.batch_id = %(id)s::bigint AND j.cancel_at IS NULL AND j.id <> ALL (ARRAY(SELECT id FROM picked)))
