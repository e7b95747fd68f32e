-- End a batch of running jobs: each row leaves `job` for `history` in this one statement, with a post-mortem in `attempt`
-- unless it succeeded. Guard: id, lease, host and state = 'running', checked by the DELETE under the row lock, locks taken in id order.
-- Index: the primary key, once for each row of the materialised input (LATERAL with a LIMIT cannot become another join), then by
-- ctid; no partial index can match the guard (the running ones are indexed by `host IS NOT NULL`), so statistics cannot lead
-- the planner into an index full of dead entries.
-- A row that was found and changed before its lock was taken (a cancel wish) may be passed by: the answer is 'again', and it is sent again.
-- Jobs that were enqueued with these ends (`children`) begin to exist in this statement, for the ends that it writes.
-- A column that no row has anything in is NULL
-- instead of an array: most batches are successes without a result. Only what was not written is answered row by row.
WITH ended AS MATERIALIZED (
    SELECT e.*
      FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(states)s::text[], %(verdicts)s::text[], %(results)s::text[],
                  %(durations)s::double precision[], %(cpus)s::double precision[], %(peaks)s::bigint[], %(progresses)s::text[],
                  %(checkpoints)s::text[], %(crashes)s::boolean[], %(lines)s::text[], %(errors)s::text[], %(tracebacks)s::text[],
                  %(stacks)s::text[], %(exit_statuses)s::text[], %(outputs)s::text[], %(rungs)s::text[], %(workers)s::text[],
                  %(versions)s::text[])
           AS e (id, lease, state, verdict, result, duration, cpu, peak, progress, checkpoint, crash, line, error, traceback,
                 stack, exit_status, output, rungs, worker, version)
),
held AS MATERIALIZED (
    SELECT e.*, found.at
      FROM ended e
     CROSS JOIN LATERAL (
           SELECT j.ctid AS at
             FROM pgworkers.job j
            WHERE j.id = e.id AND j.lease = e.lease AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
            LIMIT 1) found
),
gone AS (
    DELETE FROM pgworkers.job j
     USING held e
     WHERE j.ctid = e.at AND j.lease = e.lease AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
    RETURNING j.id, coalesce(e.state::pgworkers.job_state, 'succeeded') AS state, coalesce(e.verdict, 'succeeded') AS verdict,
              j.priority, j.queue, j.task, j.args, j.lease, j.host, j.attempt,
              j.crashes + coalesce(e.crash::integer, 0) AS crashes, j.max_attempts, j.max_crashes, j.created_at, j.run_at,
              j.claimed_at, e.duration, e.cpu, e.peak, j.deadline_at, j.timeout, j.memory, j.unique_key, j.concurrency_key,
              coalesce(e.checkpoint::jsonb, j.checkpoint) AS checkpoint, coalesce(e.progress::jsonb, j.progress) AS progress,
              e.result::jsonb AS result,
              CASE WHEN e.line IS NULL THEN j.errors
                   ELSE (j.errors || e.line)[greatest(cardinality(j.errors) - 8, 1):] END AS errors, j.meta,
              j.batch_id, j.linked, e.error, e.traceback, e.stack, e.exit_status, e.output, e.rungs, e.worker, e.version
),
kept AS (
    INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, host, attempt, crashes,
                                   max_attempts, max_crashes, created_at, run_at, started_at, duration, cpu_seconds,
                                   peak_rss, deadline_at, timeout, memory, unique_key, concurrency_key, checkpoint,
                                   progress, result, errors, meta, batch_id, linked)
    SELECT id, state, verdict, priority, queue, task, args, lease, host, attempt, crashes, max_attempts, max_crashes,
           created_at, run_at, claimed_at, duration, cpu, peak, deadline_at, timeout, memory, unique_key, concurrency_key,
           checkpoint, progress, result, errors, meta, batch_id, linked
      FROM gone
),
examined AS (
    INSERT INTO pgworkers.attempt (job_id, attempt, lease, host, queue, task, verdict, started_at, duration, cpu_seconds,
                                   peak_rss, error, traceback, stack, exit_status, output, progress, rungs, worker,
                                   version)
    SELECT g.id, g.attempt, g.lease, g.host, g.queue, g.task, g.verdict, g.claimed_at, g.duration, g.cpu, g.peak, g.error,
           g.traceback, g.stack, g.exit_status, g.output, g.progress, g.rungs::jsonb, g.worker, g.version
      FROM gone g
     WHERE g.verdict <> 'succeeded'
),
told AS MATERIALIZED (
    SELECT pg_notify('pgworkers_done', CASE WHEN octet_length(ids) > 7000 THEN '*' ELSE ids END)
      FROM (SELECT string_agg(id::text, ' ') AS ids FROM gone) g
     WHERE ids IS NOT NULL
    UNION ALL
    SELECT pgworkers.ended(array_agg(id), array_agg(batch_id), true, array_agg(id) FILTER (WHERE state = 'succeeded'))
      FROM gone WHERE linked HAVING count(*) > 0
    UNION ALL
    SELECT pgworkers.bear(%(children)s::jsonb, array_agg(id || ':' || lease))
      FROM gone WHERE %(children)s::jsonb IS NOT NULL HAVING count(*) > 0
)
SELECT NULL::bigint, NULL::integer, NULL::text, (SELECT count(*) FROM told)
UNION ALL
SELECT e.id, e.lease,
       CASE WHEN (e.id, e.lease) IN (SELECT id, lease FROM held) THEN 'again'
            WHEN EXISTS (SELECT FROM pgworkers.history h
                          WHERE h.id = e.id AND h.lease = e.lease AND h.host = %(host)s::uuid
                            AND h.verdict = coalesce(e.verdict, 'succeeded'))
            THEN 'already'
            ELSE 'lost' END,
       NULL
  FROM ended e
 WHERE (SELECT count(*) FROM gone) < cardinality(%(ids)s::bigint[]) AND (e.id, e.lease) NOT IN (SELECT id, lease FROM gone)
