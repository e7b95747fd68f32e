-- Attempts that were kept with a dead job, once that job is gone. Bounded. Only the partition of kept rows: the others are dropped.
-- Indexes: the primary keys, for each attempt; OFFSET keeps it so (docs/adr/2501).
WITH old AS MATERIALIZED (
    SELECT a.ctid AS at
      FROM pgworkers.attempt_kept a
     WHERE a.finished_at < now() - make_interval(secs => %(retention)s::double precision)
       AND NOT EXISTS (SELECT FROM pgworkers.history h WHERE h.id = a.job_id OFFSET 0)
       AND NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.id = a.job_id OFFSET 0)
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
)
DELETE FROM pgworkers.attempt_kept a WHERE a.ctid = ANY (ARRAY(SELECT at FROM old)) RETURNING a.job_id
