-- Give back claimed jobs that were not started: running -> ready at once, the attempt is returned, and no row is written to `attempt`. If a
-- cancel was requested in the meantime, the job becomes cancelled instead. Guard: id, lease, claimed_at, host and state = 'running' under the
-- row lock. Rows that another session has locked are skipped, and their positions are returned (docs/adr/04). Index: the primary key, by nested
-- loops over the materialised input; BETWEEN, because with an equals sign the planner may begin with the whole index (docs/adr/05).
WITH sent AS MATERIALIZED (
    SELECT %(ids)s::bigint[] AS ids, %(leases)s::integer[] AS leases, %(claims)s::timestamptz[] AS claims
),
back AS MATERIALIZED (
    SELECT b.* FROM sent s CROSS JOIN LATERAL unnest(s.ids, s.leases, s.claims) WITH ORDINALITY AS b (id, lease, claim, nth)
),
held AS MATERIALIZED (
    SELECT b.id, b.lease, b.claim, b.nth, locked.is_cancel_requested
      FROM back b
     CROSS JOIN LATERAL (
           SELECT j.cancel_at IS NOT NULL AS is_cancel_requested
             FROM pgworkers.job j
            WHERE j.id = b.id AND j.lease = b.lease AND j.claimed_at = b.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
              FOR UPDATE SKIP LOCKED) locked
),
moved AS (
    UPDATE pgworkers.job j
       SET state = 'ready', host = NULL, claimed_at = NULL, attempt = greatest(j.attempt - 1, 0)
      FROM held b
     WHERE j.id BETWEEN b.id AND b.id AND j.lease = b.lease AND j.claimed_at = b.claim
       AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running' AND NOT b.is_cancel_requested
    RETURNING j.id, j.queue, j.task
),
ended AS (
    DELETE FROM pgworkers.job j
     USING held b
     WHERE j.id BETWEEN b.id AND b.id AND j.lease = b.lease AND j.claimed_at = b.claim
       AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running' AND b.is_cancel_requested
    RETURNING j.*, 'cancelled'::pgworkers.job_state AS end_state, 'cancelled' AS end_verdict, j.args AS end_args,
              greatest(j.attempt - 1, 0) AS end_attempt, j.crashes AS end_crashes, j.checkpoint AS end_checkpoint,
              j.progress AS end_progress, j.errors AS end_errors, NULL::timestamptz AS started_at,
              NULL::double precision AS duration, NULL::double precision AS cpu_seconds, NULL::bigint AS peak_rss,
              NULL::jsonb AS result
),
archived AS (
    /* include: history_insert.fragment.sql */
),
notified AS MATERIALIZED (
    SELECT pgworkers.notify_ready(queue, array_agg(task::text), count(*), %(host)s::uuid) FROM moved GROUP BY queue
    UNION ALL
    SELECT pgworkers.notify(id::text, 'pgworkers_done') FROM ended
    UNION ALL
    SELECT pgworkers.settle_dependents(array_agg(id), array_agg(batch_id), true)
      FROM ended WHERE has_links HAVING count(*) > 0
)
SELECT (SELECT count(*) FROM moved) + (SELECT count(*) FROM ended) AS count, (SELECT count(*) FROM notified) AS notified, NULL::bigint AS nth
UNION ALL
SELECT NULL, NULL, b.nth
  FROM back b
 CROSS JOIN LATERAL (
       SELECT FROM pgworkers.job j
        WHERE j.id = b.id AND j.lease = b.lease AND j.claimed_at = b.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
        LIMIT 1) ours
 WHERE b.nth <> ALL (ARRAY(SELECT nth FROM held))
