-- End a batch of running jobs: one statement moves each row from `job` to `history`, with a row in `attempt` unless it succeeded. Guard: id,
-- lease, claimed_at, host and state = 'running', checked under the row lock. Rows that another session has locked are skipped: a host never
-- waits for a row, so it cannot deadlock with sessions that lock in an order of their own (docs/adr/04).
-- Index: the primary key, by an array of ids, without a join: there is no other way to read these rows. No partial index can match the guard
-- (running rows are indexed by `host IS NOT NULL`), so statistics cannot lead the planner into an index full of dead entries.
-- The other arrays have the values of a job at the position of its id, which width_bucket() finds by binary search: `ids` must ascend, without
-- duplicates. That is cheaper than unnesting and joining twenty arrays (docs/adr/04).
-- Jobs that were enqueued with these ends (`children`) are inserted by this statement, for the ends that it writes.
-- An array in which no row has a value is NULL instead: most batches are successes, and all with the same `result`. Returns NULL if all were
-- written, else the positions of those that were. A second statement (finish_check.sql) asks whether the others are on record, because reading
-- `history` locks and opens each partition (docs/adr/03).
WITH locked AS MATERIALIZED (
    SELECT j.id
      FROM pgworkers.job j
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.lease = (%(leases)s::integer[])[width_bucket(j.id, %(ids)s::bigint[])]
       AND j.claimed_at = (%(claims)s::timestamptz[])[width_bucket(j.id, %(ids)s::bigint[])]
       AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
       FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM pgworkers.job j
     WHERE j.id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING j.*, width_bucket(j.id, %(ids)s::bigint[]) AS nth
),
ended AS NOT MATERIALIZED (
    SELECT d.*, coalesce((%(states)s::text[])[nth]::pgworkers.job_state, 'succeeded') AS end_state,
           coalesce((%(verdicts)s::text[])[nth], 'succeeded') AS end_verdict,
           CASE WHEN (%(dropped_args)s::boolean[])[nth] THEN '{}' ELSE args END AS end_args, attempt AS end_attempt,
           crashes + coalesce((%(crashes)s::boolean[])[nth]::integer, 0) AS end_crashes,
           coalesce((%(checkpoints)s::text[])[nth]::jsonb, checkpoint) AS end_checkpoint,
           coalesce((%(progresses)s::text[])[nth]::jsonb, progress) AS end_progress,
           CASE WHEN (%(lines)s::text[])[nth] IS NULL THEN errors
                ELSE (errors || (%(lines)s::text[])[nth])[greatest(cardinality(errors) - 8, 1):] END AS end_errors,
           claimed_at AS started_at, (%(durations)s::double precision[])[nth] AS duration,
           (%(cpus)s::double precision[])[nth] AS cpu_seconds, (%(peaks)s::bigint[])[nth] AS peak_rss,
           coalesce(%(result)s::jsonb, (%(results)s::text[])[nth]::jsonb) AS result
      FROM deleted d
),
archived AS (
    /* include: history_insert.fragment.sql */
),
attempts_written AS (
    INSERT INTO pgworkers.attempt (job_id, attempt, lease, host, queue, task, verdict, started_at, duration, cpu_seconds,
                                   peak_rss, error, traceback, stack, exit_status, output, progress, rungs, worker,
                                   version)
    SELECT id, attempt, lease, host, queue, task, (%(verdicts)s::text[])[nth], claimed_at,
           (%(durations)s::double precision[])[nth], (%(cpus)s::double precision[])[nth], (%(peaks)s::bigint[])[nth],
           (%(errors)s::text[])[nth], (%(tracebacks)s::text[])[nth], (%(stacks)s::text[])[nth],
           (%(exit_statuses)s::text[])[nth], (%(outputs)s::text[])[nth],
           coalesce((%(progresses)s::text[])[nth]::jsonb, progress), (%(rungs)s::text[])[nth]::jsonb,
           (%(workers)s::text[])[nth], (%(versions)s::text[])[nth]
      FROM deleted
     WHERE %(verdicts)s::text[] IS NOT NULL AND (%(verdicts)s::text[])[nth] <> 'succeeded'
),
written AS MATERIALIZED (
    SELECT count(*) AS count, array_to_string(array_agg(id), ' ') AS ids, bool_or(has_links) AS has_links FROM deleted
),
notified AS MATERIALIZED (
    SELECT pgworkers.notify(CASE WHEN octet_length(ids) > 7000 THEN '*' ELSE ids END, 'pgworkers_done'),
           CASE WHEN has_links THEN
                (SELECT pgworkers.settle_dependents(array_agg(id), array_agg(batch_id), true, array_agg(id) FILTER (
                            WHERE coalesce((%(states)s::text[])[nth], 'succeeded') = 'succeeded'))
                   FROM deleted WHERE has_links) END,
           CASE WHEN %(children)s::jsonb IS NOT NULL THEN
                (SELECT pgworkers.enqueue_children(%(children)s::jsonb, array_agg(id || ':' || lease)) FROM deleted) END
      FROM written
     WHERE count > 0
)
SELECT CASE WHEN count < cardinality(%(ids)s::bigint[]) THEN ARRAY(SELECT nth FROM deleted) END, (SELECT count(*) FROM notified)
  FROM written
