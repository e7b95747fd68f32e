-- Complete this batch if no job of it lives, now that the transactions that ended its last jobs have committed. Index: job_batch, read
-- backwards.
SELECT pgworkers.settle_batch(%(id)s::pg_catalog.int8)
