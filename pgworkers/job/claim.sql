-- Take the right to run up to `count` ready jobs of each queue. Walks the index job_ready in order, in the ranges of priorities and
-- ids that the host names for each queue, one after the other until it has enough: everything, or only what lies behind the
-- place where it last found work (master/positions). Jobs behind a concurrency limit are in job_lane instead, one probe per queue if
-- `gates`, and chosen by pgworkers.admit().
-- Guard: state = 'ready' under FOR UPDATE SKIP LOCKED, so two hosts claim disjoint sets; paused and throttled queues,
-- expired jobs and unknown tasks are left alone. All CTEs are materialised: they are evaluated once whatever the join, so
-- that never more rows are claimed than were asked for. Updating by ctid is sound here: a row that changed between the
-- snapshot and the lock has a version this statement cannot see, is not updated, and is found by the next claim.
-- The arrays pass through a CTE so that plans for these values and for any are alike, and the statement is planned once.
-- Sorting and cutting to `count` is only for a claim in which both kinds of jobs were found.
-- A job of a limited task that still stands among the free ones is moved behind its limit, and claimed by the next claim.
WITH sent AS MATERIALIZED (
    SELECT %(queues)s::text[] AS queues, %(counts)s::integer[] AS counts, %(tasks)s::text[] AS tasks,
           %(whose)s::integer[] AS whose, %(lows)s::integer[] AS lows, %(highs)s::integer[] AS highs,
           %(firsts)s::bigint[] AS firsts
),
wants AS MATERIALIZED (
    SELECT w.queue, w.count, w.nth, s.tasks
      FROM sent s
     CROSS JOIN LATERAL unnest(s.queues, s.counts) WITH ORDINALITY AS w (queue, count, nth)
      LEFT JOIN LATERAL (
           SELECT q.paused OR coalesce(q.throttled_until > now(), false) AS closed
             FROM pgworkers.queue q
            WHERE q.name = w.queue
            LIMIT 1) q ON true
     WHERE q.closed IS NOT TRUE
),
ranges AS MATERIALIZED (
    SELECT r.* FROM sent s CROSS JOIN LATERAL unnest(s.whose, s.lows, s.highs, s.firsts) AS r (whose, low, high, first)
),
limited AS MATERIALIZED (
    SELECT ARRAY(SELECT t.name FROM pgworkers.task t WHERE t.concurrency IS NOT NULL
                 UNION ALL SELECT c.name FROM pgworkers.concurrency c WHERE c.kind = 'task') AS tasks
),
free AS MATERIALIZED (
    SELECT w.queue, w.count, ready.at, ready.priority, ready.id, ready.task = ANY (l.tasks) AS gate
      FROM wants w
     CROSS JOIN limited l
     CROSS JOIN LATERAL (
           SELECT found.*
             FROM ranges r
            CROSS JOIN LATERAL (
                  SELECT j.ctid AS at, j.priority, j.id, j.task
                    FROM pgworkers.job j
                   WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
                     AND j.priority BETWEEN r.low AND r.high AND j.id >= r.first
                     AND j.task = ANY (w.tasks) AND (j.expires_at IS NULL OR j.expires_at > now())
                   ORDER BY j.priority DESC, j.id
                   LIMIT w.count
                     FOR UPDATE SKIP LOCKED) found
            WHERE r.whose = w.nth
            LIMIT w.count) ready
),
gates AS MATERIALIZED (
    SELECT array_agg(w.queue) AS queues, array_agg(w.count) AS counts, (SELECT tasks FROM sent) AS tasks
      FROM wants w
     CROSS JOIN LATERAL (
           SELECT FROM pgworkers.job j
            WHERE j.queue = w.queue AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL)
            ORDER BY pgworkers.lane(j.concurrency_key, j.task)
            LIMIT 1) waits
     WHERE w.count > 0 AND %(gates)s::boolean
),
admitted AS MATERIALIZED (
    SELECT a.queue, w.count, a.at, a.priority, a.id
      FROM gates g
     CROSS JOIN LATERAL pgworkers.admit(g.queues, g.counts, g.tasks, false, %(look)s::integer) a
      JOIN wants w ON w.queue = a.queue
     WHERE g.queues IS NOT NULL
),
chosen AS MATERIALIZED (
    SELECT c.at, c.count, row_number() OVER (PARTITION BY c.queue ORDER BY c.priority DESC, c.id) AS nth
      FROM (SELECT queue, count, at, priority, id FROM free WHERE NOT gate UNION ALL SELECT * FROM admitted) c
),
moved AS (
    UPDATE pgworkers.job j SET gated = true
     WHERE j.ctid = ANY (ARRAY(SELECT at FROM free WHERE gate)) AND j.state = 'ready'
    RETURNING pg_notify('pgworkers', 'ready:' || j.queue)
)
UPDATE pgworkers.job j
   SET state = 'running', host = %(host)s::uuid, lease = j.lease + 1, attempt = j.attempt + 1, claimed_at = now()
 WHERE j.ctid = ANY (ARRAY(SELECT at FROM free WHERE NOT gate AND NOT EXISTS (SELECT FROM admitted)
                           UNION ALL
                           SELECT at FROM chosen WHERE nth <= count AND EXISTS (SELECT FROM admitted)))
   AND j.state = 'ready'
RETURNING j.id, j.lease, j.queue, j.task, j.args::text, j.attempt, j.crashes, j.max_attempts, j.max_crashes,
          date_part('epoch', j.timeout), j.memory, date_part('epoch', j.deadline_at - now()), j.checkpoint::text, j.meta::text,
          j.errors, greatest(date_part('epoch', now() - j.run_at), 0), j.cancel_at IS NOT NULL, j.priority
