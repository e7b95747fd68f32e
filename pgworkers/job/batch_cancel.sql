-- Cancel a batch: the job that comes after it now, its jobs by batch_cancel_jobs.sql. Index: the primary key.
WITH marked AS (
    UPDATE pgworkers.batch b
       SET cancelled_at = coalesce(b.cancelled_at, now())
     WHERE b.id = %(id)s::bigint
    RETURNING b.then_id
)
SELECT CASE WHEN m.then_id IS NOT NULL THEN pgworkers.cancel(m.then_id, 'its batch was cancelled') END FROM marked m
