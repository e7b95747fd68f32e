-- Is this batch complete, now that those who ended its last jobs have committed? Index: job_batch, walked backwards.
SELECT pgworkers.settle_batch(%(id)s::pg_catalog.int8)
