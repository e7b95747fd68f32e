-- End an attempt but not the job: running -> scheduled, or ready when there is nothing to wait for. A job that was wished
-- away meanwhile becomes cancelled instead: after an acknowledged cancel nothing starts. An attempt that ended by itself shows
-- that the job does not kill its supervisor: its losses begin again.
-- Guard: id, lease, claimed_at, host and state = 'running', checked under the row lock; what another session has locked is skipped (docs/adr/04). Index: the primary key, by
-- nested loops over the materialised input (no partial index can match the guard, docs/adr/05); BETWEEN, because an
-- equals sign lets the planner begin with the whole index (docs/adr/05). Answers the places of those that were written; whether
-- the others are on record is asked in a second statement (unwritten_attempts.sql), because to look locks and opens every partition.
WITH again AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(claims)s::timestamptz[], %(verdicts)s::text[], %(afters)s::float8[], %(frees)s::boolean[],
                  %(durations)s::float8[], %(cpus)s::float8[], %(peaks)s::bigint[], %(progresses)s::text[],
                  %(checkpoints)s::text[], %(crashes)s::boolean[], %(lines)s::text[], %(errors)s::text[], %(tracebacks)s::text[],
                  %(stacks)s::text[], %(exit_statuses)s::text[], %(outputs)s::text[], %(rungs)s::text[], %(workers)s::text[],
                  %(versions)s::text[], %(losts)s::boolean[]) WITH ORDINALITY
           AS x (id, lease, claim, verdict, after, free, duration, cpu, peak, progress, checkpoint, crash, line, error, traceback,
                 stack, exit_status, output, rungs, worker, version, lost, nth)
),
held AS MATERIALIZED (
    SELECT a.*, locked.*
      FROM again a
     CROSS JOIN LATERAL (
           SELECT j.host, j.queue, j.task, j.attempt, j.claimed_at, j.cancel_at IS NOT NULL AS wished,
                  coalesce(a.progress::jsonb, j.progress) AS last_progress,
                  CASE WHEN a.line IS NULL THEN j.errors
                       ELSE (j.errors || a.line)[greatest(cardinality(j.errors) - 8, 1):] END AS lines
             FROM pgworkers.job j
            WHERE j.id = a.id AND j.lease = a.lease AND j.claimed_at = a.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
              FOR UPDATE SKIP LOCKED) locked
),
moved AS (
    UPDATE pgworkers.job j
       SET state = CASE WHEN a.after > 0 THEN 'scheduled' ELSE 'ready' END::pgworkers.job_state,
           run_at = now() + make_interval(secs => a.after), host = NULL, claimed_at = NULL, expires_at = NULL,
           attempt = greatest(j.attempt - a.free::integer, 0), crashes = j.crashes + coalesce(a.crash::integer, 0), errors = a.lines,
           losses = CASE WHEN a.lost THEN j.losses + 1 WHEN a.verdict = 'interrupted' THEN j.losses ELSE 0 END,
           progress = a.last_progress, checkpoint = coalesce(a.checkpoint::jsonb, j.checkpoint)
      FROM held a
     WHERE j.id BETWEEN a.id AND a.id AND j.lease = a.lease AND j.claimed_at = a.claim
       AND j.host IS NOT DISTINCT FROM a.host AND j.state = 'running' AND NOT a.wished
    RETURNING j.id, j.queue, j.state, a.after
),
gone AS (
    DELETE FROM pgworkers.job j
     USING held a
     WHERE j.id BETWEEN a.id AND a.id AND j.lease = a.lease AND j.claimed_at = a.claim
       AND j.host IS NOT DISTINCT FROM a.host AND j.state = 'running' AND a.wished
    RETURNING j.*, a.verdict, a.duration, a.cpu, a.peak, a.lines, a.last_progress, a.crash,
              coalesce(a.checkpoint::jsonb, j.checkpoint) AS last_checkpoint
),
kept AS (
    INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, host, attempt, crashes,
                                   max_attempts, max_crashes, created_at, run_at, started_at, duration, cpu_seconds,
                                   peak_rss, deadline_at, timeout, memory, unique_key, concurrency_key, checkpoint,
                                   progress, errors, meta, batch_id, linked, enqueued_by)
    SELECT id, 'cancelled', verdict, priority, queue, task, args, lease, host, attempt, crashes + coalesce(crash::integer, 0),
           max_attempts, max_crashes, created_at, run_at, claimed_at, duration, cpu, peak, deadline_at, timeout, memory,
           unique_key, concurrency_key, last_checkpoint, last_progress, lines, meta, batch_id, linked,
           enqueued_by
      FROM gone
),
examined AS (
    INSERT INTO pgworkers.attempt (job_id, attempt, lease, host, queue, task, verdict, started_at, duration, cpu_seconds,
                                   peak_rss, error, traceback, stack, exit_status, output, progress, rungs, worker,
                                   version)
    SELECT id, attempt, lease, host, queue, task, verdict, claimed_at, duration, cpu, peak, error, traceback, stack,
           exit_status, output, last_progress, rungs::jsonb, worker, version
      FROM held
),
told AS MATERIALIZED (
    SELECT pgworkers.tell('ready:' || queue) FROM (SELECT DISTINCT queue FROM moved WHERE state = 'ready') q
    UNION ALL
    SELECT pgworkers.tell('due:') FROM moved WHERE after > 0 AND after < 10
    UNION ALL
    SELECT pgworkers.tell(id::text, 'pgworkers_done') FROM gone
    UNION ALL
    SELECT pgworkers.ended(array_agg(id), array_agg(batch_id), true)
      FROM gone WHERE linked HAVING count(*) > 0
)
SELECT h.nth, (SELECT count(*) FROM told) FROM held h
