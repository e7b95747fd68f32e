-- Take running jobs away from lost hosts: hosts without a row, or not renewed for the lease that the row names. Never from the asking host.
-- Each rescue costs the job an attempt and counts as a loss, but not as a crash. The job is dead if it has no losses or attempts left, if it is
-- past its deadline, or if its task declares so; cancelled if a cancel was requested; else scheduled, as its task declares or by exponential
-- back-off. Bounded; skips rows that others have locked. `clock` is the database's time as the asking host estimates it. `only` names the one
-- job to try, and `refused` says why it cannot be scheduled: then it is dead.
-- Indexes: job_running, in the ranges between the ids of live hosts, then the primary key by BETWEEN: with an equals sign the planner may begin
-- with the whole index (docs/adr/05). Guard: the row still has the same host and lease, checked by the row lock. No unique key can conflict: a
-- running row keeps its own.
-- A row that was rescued by another host and claimed again between the snapshot of this statement and its lock is neither moved nor ended,
-- because the snapshot shows its old version. Nothing is written about it (`taken`).
WITH found AS MATERIALIZED (
    SELECT held.*
      FROM pgworkers.lost_host_ranges(%(host)s::uuid, %(clock)s::timestamptz) g
     CROSS JOIN LATERAL (
           SELECT j.id, j.lease, j.host, j.queue, j.task, j.attempt, j.max_attempts, j.consecutive_losses, j.claimed_at,
                  j.deadline_at, j.cancel_at, j.progress
             FROM pgworkers.job j
            WHERE j.host > g.after_id AND j.host < g.before_id AND (%(only)s::bigint IS NULL OR j.id = %(only)s::bigint)
            ORDER BY j.host
            LIMIT %(limit)s::bigint
              FOR UPDATE SKIP LOCKED) held
),
lost AS MATERIALIZED (
    SELECT j.id, j.lease, j.consecutive_losses + 1 AS consecutive_losses, j.progress, j.attempt, j.max_attempts, j.host, j.queue, j.task, j.claimed_at,
           CASE WHEN j.cancel_at IS NOT NULL THEN 'cancelled'
                WHEN j.consecutive_losses + 1 >= %(max_losses)s::integer OR j.attempt >= j.max_attempts OR j.deadline_at <= now()
                  OR t.lost_retry IS FALSE OR %(refused)s::text IS NOT NULL THEN 'dead'
                ELSE 'scheduled' END::pgworkers.job_state AS state,
           CASE WHEN h.id IS NULL THEN 'host lost: its row is gone'
                ELSE 'host lost: no heartbeat for ' || round(extract(epoch FROM now() - h.renewed_at)) || ' s' END
           || coalesce(', and it cannot run again: ' || %(refused)s::text, '')
           || CASE WHEN j.consecutive_losses + 1 >= %(max_losses)s::integer
                   THEN ', not tried again: it was running in ' || j.consecutive_losses + 1 || ' deaths of its supervisor or host in a row'
                   ELSE '' END AS error,
           t.lost_delay
      FROM (SELECT * FROM found ORDER BY id LIMIT %(limit)s::bigint) j
      LEFT JOIN pgworkers.host h ON h.id = j.host
      LEFT JOIN pgworkers.task t ON t.name = j.task
),
moved AS (
    UPDATE pgworkers.job j
       SET state = 'scheduled', host = NULL, claimed_at = NULL, expires_at = NULL, consecutive_losses = l.consecutive_losses,
           run_at = now() + make_interval(secs => coalesce(
               l.lost_delay, least(2 * power(2, least(l.consecutive_losses - 1, 20)), 10800) * (1 + 0.1 * random()))),
           errors = (j.errors || l.error)[greatest(cardinality(j.errors) - 8, 1):]
      FROM lost l
     WHERE j.id BETWEEN l.id AND l.id AND j.lease = l.lease AND j.state = 'running' AND l.state = 'scheduled'
    RETURNING j.id
),
ended AS (
    DELETE FROM pgworkers.job j
     USING lost l
     WHERE j.id BETWEEN l.id AND l.id AND j.lease = l.lease AND j.state = 'running' AND l.state <> 'scheduled'
    RETURNING j.*, l.state AS end_state, 'host_lost' AS end_verdict, j.args AS end_args, j.attempt AS end_attempt,
              j.crashes AS end_crashes, j.checkpoint AS end_checkpoint, j.progress AS end_progress,
              (j.errors || l.error)[greatest(cardinality(j.errors) - 8, 1):] AS end_errors, j.claimed_at AS started_at,
              greatest(extract(epoch FROM now() - j.claimed_at), 0)::double precision AS duration,
              NULL::double precision AS cpu_seconds, NULL::bigint AS peak_rss, NULL::jsonb AS result
),
taken AS MATERIALIZED (
    SELECT l.* FROM lost l WHERE l.id IN (SELECT id FROM moved UNION ALL SELECT id FROM ended)
),
archived AS (
    /* include: history_insert.fragment.sql */
),
attempts_written AS (
    INSERT INTO pgworkers.attempt (job_id, attempt, lease, host, queue, task, verdict, started_at, duration, error, progress)
    SELECT id, attempt, lease, host, queue, task, 'host_lost', claimed_at, greatest(extract(epoch FROM now() - claimed_at), 0),
           error, progress
      FROM taken
),
notified AS MATERIALIZED (
    SELECT pgworkers.notify(id::text, 'pgworkers_done') FROM ended
    UNION ALL
    SELECT pgworkers.settle_dependents(array_agg(id), array_agg(batch_id), true)
      FROM ended WHERE has_links HAVING count(*) > 0
)
SELECT t.id, t.lease, t.queue, t.task, t.attempt, t.state::text, t.error, t.max_attempts, (SELECT count(*) FROM notified)
  FROM taken t
 ORDER BY t.id
