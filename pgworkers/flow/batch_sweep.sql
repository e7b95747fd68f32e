-- The bound on a lost notification: open batches of which nothing lives. Indexes: batch_open, job_batch.
SELECT pgworkers.settle(o.id)
  FROM (SELECT b.id
          FROM pgworkers.batch b
         WHERE b.finished_at IS NULL AND pgworkers.newest(b.id) IS NULL
         ORDER BY b.id
         LIMIT %(limit)s::bigint) o
