-- Settle open batches without a live job, in case a notification was lost; one portion of a walk in the order of ids. Reads at most `portion`
-- batches. Indexes: batch_open, job_batch. Guard: pgworkers.settle_batch().
SELECT o.id, CASE WHEN pgworkers.newest_live_state(o.id) IS NULL THEN pgworkers.settle_batch(o.id) END
  FROM (SELECT b.id
          FROM pgworkers.batch b
         WHERE b.finished_at IS NULL AND b.id > %(after)s::bigint
         ORDER BY b.id
         LIMIT %(portion)s::bigint) o
 ORDER BY o.id
