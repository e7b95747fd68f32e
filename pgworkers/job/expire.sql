-- Jobs that were not started in time are dead. Bounded, skips what others have locked.
-- Index: job_expires, then by ctid (see promote.sql). Guard: not running, under the row lock.
WITH late AS MATERIALIZED (
    SELECT j.ctid AS at
      FROM pgworkers.job j
     WHERE j.expires_at <= now() AND j.state <> 'running'
     ORDER BY j.expires_at
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgworkers.job j
     WHERE j.ctid = ANY (ARRAY(SELECT at FROM late)) AND j.state <> 'running'
    RETURNING j.*
),
kept AS (
    INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes, max_attempts,
                                   max_crashes, created_at, run_at, deadline_at, timeout, memory, unique_key,
                                   concurrency_key, checkpoint, progress, errors, meta, batch_id, linked,
                                   enqueued_by)
    SELECT id, 'dead', 'expired', priority, queue, task, args, lease, attempt, crashes, max_attempts, max_crashes,
           created_at, run_at, deadline_at, timeout, memory, unique_key, concurrency_key, checkpoint, progress,
           (errors || ('expired: not started by ' || to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC')
           )[greatest(cardinality(errors) - 8, 1):], meta, batch_id, linked, enqueued_by
      FROM gone
),
told AS MATERIALIZED (
    SELECT pgworkers.tell(id::text, 'pgworkers_done') FROM gone
    UNION ALL
    SELECT pgworkers.ended(array_agg(id), array_agg(batch_id), false)
      FROM gone WHERE linked HAVING count(*) > 0
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM told)
