-- How far a batch is, counted from the jobs themselves. Indexes: job_batch, history_batch (only what failed is in it; the rest
-- of what ended succeeded).
SELECT b.total, live.count, failed.count
  FROM pgworkers.batch b
 CROSS JOIN LATERAL (SELECT count(*) FROM pgworkers.job j WHERE j.batch_id = b.id) live
 CROSS JOIN LATERAL (SELECT count(*) FROM pgworkers.history h WHERE h.batch_id = b.id AND h.state <> 'succeeded') failed
 WHERE b.id = %(id)s::bigint
