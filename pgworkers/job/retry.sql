-- End an attempt but not the job: running -> scheduled, or ready if there is nothing to wait for. If a cancel was requested in the meantime,
-- the job becomes cancelled instead: nothing starts after an acknowledged cancel. An attempt that ended by itself shows that the job does not
-- kill its supervisor, so `consecutive_losses` is reset.
-- Guard: id, lease, claimed_at, host and state = 'running', checked under the row lock; rows that another session has locked are skipped
-- (docs/adr/04). Index: the primary key, by nested loops over the materialised input; no partial index can match the guard. BETWEEN, because
-- with an equals sign the planner may begin with the whole index (docs/adr/05). Returns the positions of those that were written. A second
-- statement (retry_check.sql) asks whether the others are on record, because that locks and opens each partition.
WITH again AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(claims)s::timestamptz[], %(verdicts)s::text[], %(afters)s::float8[], %(frees)s::boolean[],
                  %(durations)s::float8[], %(cpus)s::float8[], %(peaks)s::bigint[], %(progresses)s::text[],
                  %(checkpoints)s::text[], %(crashes)s::boolean[], %(lines)s::text[], %(errors)s::text[], %(tracebacks)s::text[],
                  %(stacks)s::text[], %(exit_statuses)s::text[], %(outputs)s::text[], %(rungs)s::text[], %(workers)s::text[],
                  %(versions)s::text[], %(losts)s::boolean[]) WITH ORDINALITY
           AS x (id, lease, claim, verdict, after, free, duration, cpu_seconds, peak_rss, progress, checkpoint, crash, line, error, traceback,
                 stack, exit_status, output, rungs, worker, version, lost, nth)
),
held AS MATERIALIZED (
    SELECT a.*, locked.*
      FROM again a
     CROSS JOIN LATERAL (
           SELECT j.host, j.queue, j.task, j.attempt, j.claimed_at, j.cancel_at IS NOT NULL AS is_cancel_requested,
                  j.crashes + coalesce(a.crash::integer, 0) AS end_crashes,
                  coalesce(a.checkpoint::jsonb, j.checkpoint) AS end_checkpoint,
                  coalesce(a.progress::jsonb, j.progress) AS end_progress,
                  CASE WHEN a.line IS NULL THEN j.errors
                       ELSE (j.errors || a.line)[greatest(cardinality(j.errors) - 8, 1):] END AS end_errors
             FROM pgworkers.job j
            WHERE j.id = a.id AND j.lease = a.lease AND j.claimed_at = a.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
              FOR UPDATE SKIP LOCKED) locked
),
moved AS (
    UPDATE pgworkers.job j
       SET state = CASE WHEN a.after > 0 THEN 'scheduled' ELSE 'ready' END::pgworkers.job_state,
           run_at = now() + make_interval(secs => a.after), host = NULL, claimed_at = NULL, expires_at = NULL,
           attempt = greatest(j.attempt - a.free::integer, 0), crashes = a.end_crashes, errors = a.end_errors,
           consecutive_losses = CASE WHEN a.lost THEN j.consecutive_losses + 1 WHEN a.verdict = 'interrupted' THEN j.consecutive_losses ELSE 0 END,
           progress = a.end_progress, checkpoint = a.end_checkpoint
      FROM held a
     WHERE j.id BETWEEN a.id AND a.id AND j.lease = a.lease AND j.claimed_at = a.claim
       AND j.host IS NOT DISTINCT FROM a.host AND j.state = 'running' AND NOT a.is_cancel_requested
    RETURNING j.id, j.queue, j.state, a.after
),
ended AS (
    DELETE FROM pgworkers.job j
     USING held a
     WHERE j.id BETWEEN a.id AND a.id AND j.lease = a.lease AND j.claimed_at = a.claim
       AND j.host IS NOT DISTINCT FROM a.host AND j.state = 'running' AND a.is_cancel_requested
    RETURNING j.*, 'cancelled'::pgworkers.job_state AS end_state, a.verdict AS end_verdict, j.args AS end_args,
              j.attempt AS end_attempt, a.end_crashes, a.end_checkpoint, a.end_progress, a.end_errors,
              j.claimed_at AS started_at, a.duration, a.cpu_seconds, a.peak_rss, NULL::jsonb AS result
),
archived AS (
    /* include: history_insert.fragment.sql */
),
attempts_written AS (
    INSERT INTO pgworkers.attempt (job_id, attempt, lease, host, queue, task, verdict, started_at, duration, cpu_seconds,
                                   peak_rss, error, traceback, stack, exit_status, output, progress, rungs, worker,
                                   version)
    SELECT id, attempt, lease, host, queue, task, verdict, claimed_at, duration, cpu_seconds, peak_rss, error, traceback, stack,
           exit_status, output, end_progress, rungs::jsonb, worker, version
      FROM held
),
notified AS MATERIALIZED (
    SELECT pgworkers.notify('ready:' || queue) FROM (SELECT DISTINCT queue FROM moved WHERE state = 'ready') q
    UNION ALL
    SELECT pgworkers.notify('due:') FROM moved WHERE after > 0 AND after < 10
    UNION ALL
    SELECT pgworkers.notify(id::text, 'pgworkers_done') FROM ended
    UNION ALL
    SELECT pgworkers.settle_dependents(array_agg(id), array_agg(batch_id), true)
      FROM ended WHERE has_links HAVING count(*) > 0
)
SELECT h.nth, (SELECT count(*) FROM notified) FROM held h
