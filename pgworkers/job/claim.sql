-- Take the right to run up to `count` ready jobs of each queue. Walks the index job_ready in order, one range per queue.
-- Guard: state = 'ready' under FOR UPDATE SKIP LOCKED, so two hosts claim disjoint sets; paused and throttled queues,
-- expired jobs and unknown tasks are left alone. Both CTEs are materialised: they are evaluated once whatever the join, so
-- that never more rows are claimed than were asked for. Updating by ctid is sound here: a row that changed between the
-- snapshot and the lock has a version this statement cannot see, is not updated, and is found by the next claim.
WITH wants AS MATERIALIZED (
    SELECT w.queue, w.count
      FROM unnest(%(queues)s::text[], %(counts)s::integer[]) AS w (queue, count)
      LEFT JOIN pgworkers.queue q ON q.name = w.queue
     WHERE q.paused IS NOT TRUE AND (q.throttled_until IS NULL OR q.throttled_until <= now())
),
locked AS MATERIALIZED (
    SELECT ready.at
      FROM wants w
     CROSS JOIN LATERAL (
           SELECT j.ctid AS at
             FROM pgworkers.job j
            WHERE j.queue = w.queue AND j.state = 'ready' AND j.task = ANY (%(tasks)s::text[])
              AND (j.expires_at IS NULL OR j.expires_at > now())
            ORDER BY j.priority DESC, j.id
            LIMIT w.count
              FOR UPDATE SKIP LOCKED) ready
)
UPDATE pgworkers.job j
   SET state = 'running', host = %(host)s::uuid, lease = j.lease + 1, attempt = j.attempt + 1, claimed_at = now()
 WHERE j.ctid = ANY (ARRAY(SELECT at FROM locked)) AND j.state = 'ready'
RETURNING j.priority, j.id, j.lease, j.queue, j.task, j.args::text, j.attempt, j.crashes, j.max_attempts, j.max_crashes,
          extract(epoch FROM j.timeout)::double precision, j.memory,
          extract(epoch FROM j.deadline_at - now())::double precision, j.checkpoint::text, j.meta::text, j.errors,
          greatest(extract(epoch FROM now() - j.run_at), 0)::double precision, j.cancel_at IS NOT NULL
