-- End a batch of running jobs: each row leaves `job` for `history` in this one statement, with a post-mortem in `attempt`
-- unless it succeeded. Guard: id, lease and state = 'running', checked under the row lock, locks taken in id order.
-- Index: the primary key, by nested loops over the materialised input; no partial index can match the guard (the running
-- ones are indexed by `host IS NOT NULL`), so statistics cannot lead the planner into an index full of dead entries.
-- Joined by id, not by ctid: a cancel wish that committed after the snapshot made a version this statement cannot see.
-- The arrays pass through a CTE so that the planner does not see their length: for a hundred rows it would rather scan a
-- table of a few hundred pages as a whole.
WITH sent AS MATERIALIZED (
    SELECT %(ids)s::bigint[] AS ids, %(leases)s::integer[] AS leases, %(states)s::text[] AS states,
           %(verdicts)s::text[] AS verdicts, %(results)s::text[] AS results, %(durations)s::double precision[] AS durations,
           %(cpus)s::double precision[] AS cpus, %(peaks)s::bigint[] AS peaks, %(progresses)s::text[] AS progresses,
           %(checkpoints)s::text[] AS checkpoints, %(crashes)s::boolean[] AS crashes, %(lines)s::text[] AS lines
),
ended AS MATERIALIZED (
    SELECT e.*
      FROM sent s
     CROSS JOIN LATERAL unnest(s.ids, s.leases, s.states, s.verdicts, s.results, s.durations, s.cpus, s.peaks, s.progresses,
                               s.checkpoints, s.crashes, s.lines)
           AS e (id, lease, state, verdict, result, duration, cpu, peak, progress, checkpoint, crash, line)
),
held AS MATERIALIZED (
    SELECT e.*
      FROM ended e
     CROSS JOIN LATERAL (
           SELECT FROM pgworkers.job j
            WHERE j.id = e.id AND j.lease = e.lease AND j.state = 'running'
              FOR UPDATE) locked
),
gone AS (
    DELETE FROM pgworkers.job j
     USING held e
     WHERE j.id = e.id AND j.lease = e.lease AND j.state = 'running'
    RETURNING j.id, e.state::pgworkers.job_state AS state, e.verdict, j.priority, j.queue, j.task, j.args, j.lease, j.host,
              j.attempt, j.crashes + e.crash::integer AS crashes, j.max_attempts, j.max_crashes, j.created_at, j.run_at,
              j.claimed_at, e.duration, e.cpu, e.peak, j.deadline_at, j.timeout, j.memory, j.unique_key, j.concurrency_key,
              coalesce(e.checkpoint::jsonb, j.checkpoint) AS checkpoint, coalesce(e.progress::jsonb, j.progress) AS progress,
              e.result::jsonb AS result,
              CASE WHEN e.line IS NULL THEN j.errors
                   ELSE (j.errors || e.line)[greatest(cardinality(j.errors) - 8, 1):] END AS errors, j.meta,
              j.batch_id, j.linked
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
    SELECT g.id, g.attempt, g.lease, g.host, g.queue, g.task, g.verdict, g.claimed_at, g.duration, g.cpu, g.peak, f.error,
           f.traceback, f.stack, f.exit_status, f.output, g.progress, f.rungs::jsonb, f.worker, f.version
      FROM gone g
      JOIN unnest(%(failed_ids)s::bigint[], %(errors)s::text[], %(tracebacks)s::text[], %(stacks)s::text[],
                  %(exit_statuses)s::text[], %(outputs)s::text[], %(rungs)s::text[], %(workers)s::text[],
                  %(versions)s::text[])
           AS f (id, error, traceback, stack, exit_status, output, rungs, worker, version) ON f.id = g.id
     WHERE g.verdict <> 'succeeded'
),
told AS MATERIALIZED (
    SELECT pg_notify('pgworkers_done', CASE WHEN octet_length(ids) > 7000 THEN '*' ELSE ids END)
      FROM (SELECT string_agg(id::text, ' ' ORDER BY id) AS ids FROM gone) g
     WHERE ids IS NOT NULL
    UNION ALL
    SELECT pgworkers.ended(array_agg(id), array_agg(batch_id), true, array_agg(id) FILTER (WHERE state = 'succeeded'))
      FROM gone WHERE linked HAVING count(*) > 0
)
SELECT e.id, e.lease,
       CASE WHEN e.id = ANY (ARRAY(SELECT id FROM gone)) THEN 'written'
            WHEN EXISTS (SELECT FROM pgworkers.history h
                          WHERE h.id = e.id AND h.lease = e.lease AND h.host = %(host)s::uuid AND h.verdict = e.verdict)
            THEN 'already'
            ELSE 'lost' END,
       (SELECT count(*) FROM told)
  FROM ended e
