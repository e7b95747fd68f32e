-- Claim up to `count` ready jobs of each queue, by priority and then in enqueue order. Walks the index job_ready from the head of each queue.
-- Where that would be slow, claim_ranges.sql says where to begin.
-- Jobs behind a concurrency limit are in job_ready_by_task instead. One probe per queue (if `include_limited`) shows whether there are any, and two small
-- indexes show whether a task is limited. Only then choose_claimed_jobs() decides between both kinds. What a claim does not need must not be
-- part of its plan: each node costs some microseconds, even if it is never reached (docs/adr/24).
-- Guard: state = 'ready' under FOR UPDATE SKIP LOCKED, so two hosts claim disjoint sets. Paused and throttled queues, expired jobs and unknown
-- tasks are left alone. The CTE is materialised: it is evaluated once whatever the join, so no more rows are claimed than were asked for.
-- Updating by ctid is safe: if a row changed between the snapshot and the lock, this statement cannot see its new version and does not update
-- it. The next claim finds it.
WITH unlimited AS MATERIALIZED (
    SELECT ready.at
      FROM unnest(%(queues)s::text[], %(counts)s::integer[]) AS w (queue, count)
      LEFT JOIN LATERAL (
           SELECT q.paused OR coalesce(q.throttled_until > now(), false) AS closed
             FROM pgworkers.queue q
            WHERE q.name = w.queue
            LIMIT 1) q ON true
     CROSS JOIN LATERAL (
           SELECT j.ctid AS at
             FROM pgworkers.job j
            WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
              AND j.task = ANY (%(tasks)s::text[]) AND (j.expires_at IS NULL OR j.expires_at > now())
            ORDER BY j.priority DESC, j.id
            LIMIT w.count
              FOR UPDATE SKIP LOCKED) ready
     WHERE q.closed IS NOT TRUE
)
UPDATE pgworkers.job j
   SET state = 'running', host = %(host)s::uuid, lease = j.lease + 1, attempt = j.attempt + 1, claimed_at = now()
 WHERE j.ctid = ANY ((
       /* include: claim_choice.fragment.sql */
       )::tid[])
   AND j.state = 'ready'
RETURNING /* include: claim_returning.fragment.sql */
