-- End jobs that were not started in time: dead, verdict expired. Bounded; skips rows that other sessions have locked.
-- Index: job_expires, then by ctid (see promote.sql). Guard: not running, under the row lock.
WITH late AS MATERIALIZED (
    SELECT j.ctid AS at
      FROM pgworkers.job j
     WHERE j.expires_at <= now() AND j.state <> 'running'
     ORDER BY j.expires_at
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
),
ended AS (
    DELETE FROM pgworkers.job j
     WHERE j.ctid = ANY (ARRAY(SELECT at FROM late)) AND j.state <> 'running'
    RETURNING j.*, 'dead'::pgworkers.job_state AS end_state, 'expired' AS end_verdict, j.args AS end_args,
              j.attempt AS end_attempt, j.crashes AS end_crashes, j.checkpoint AS end_checkpoint, j.progress AS end_progress,
              (j.errors || ('expired: not started by ' || to_char(j.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC')
              )[greatest(cardinality(j.errors) - 8, 1):] AS end_errors, NULL::timestamptz AS started_at,
              NULL::double precision AS duration, NULL::double precision AS cpu_seconds, NULL::bigint AS peak_rss,
              NULL::jsonb AS result
),
archived AS (
    /* include: history_insert.fragment.sql */
),
notified AS MATERIALIZED (
    SELECT pgworkers.notify(id::text, 'pgworkers_done') FROM ended
    UNION ALL
    SELECT pgworkers.settle_dependents(array_agg(id), array_agg(batch_id), false)
      FROM ended WHERE has_links HAVING count(*) > 0
)
SELECT (SELECT count(*) FROM ended), (SELECT count(*) FROM notified)
