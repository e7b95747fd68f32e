-- From time to time: claim first the oldest of the jobs that have been ready for `min_age_seconds` seconds, whatever their priority, then as claim.sql
-- does. So low priorities never starve. The oldest job is found through job_ready as well, as the first one of each priority, in the ranges of
-- claim_ranges.sql: of one priority or, by a loose scan, of the `max_groups` lowest ones in the range. It needs no index of its own.
-- Guards, CTEs and the two kinds of ranges: claim_ranges.sql. The check for limited tasks is not part of the scan: the planner would expect few
-- rows and sort them. Moving such jobs behind their limit is left to claim.sql.
WITH RECURSIVE sent AS MATERIALIZED (
    SELECT %(queues)s::text[] AS queues, %(counts)s::integer[] AS counts, %(tasks)s::text[] AS tasks
),
wants AS MATERIALIZED (
    SELECT w.queue, w.count, s.tasks, w.nth
      FROM sent s
     CROSS JOIN LATERAL unnest(s.queues, s.counts) WITH ORDINALITY AS w (queue, count, nth)
      LEFT JOIN pgworkers.queue q ON q.name = w.queue
     WHERE q.paused IS NOT TRUE AND (q.throttled_until IS NULL OR q.throttled_until <= now()) AND w.count > 0
),
limited AS MATERIALIZED (
    SELECT ARRAY(SELECT t.name FROM pgworkers.task t WHERE t.concurrency IS NOT NULL
                 UNION ALL SELECT c.name FROM pgworkers.concurrency c WHERE c.kind = 'task') AS tasks
),
levels AS (
    SELECT w.queue, w.count, w.tasks, r.low::bigint, r.high, r.first, r.last,
           CASE WHEN r.low = r.high THEN r.low END::bigint AS priority, 0 AS seen
      FROM wants w
      JOIN unnest(%(queue_numbers)s::integer[], %(low_priorities)s::integer[], %(high_priorities)s::integer[], %(first_ids)s::bigint[], %(last_ids)s::bigint[])
           AS r (queue_number, low, high, first, last) ON r.queue_number = w.nth
    UNION ALL
    SELECT l.queue, l.count, l.tasks, l.low, l.high, l.first, l.last, up.priority::bigint, l.seen + 1
      FROM levels l
     CROSS JOIN LATERAL (
           SELECT j.priority
             FROM pgworkers.job j
            WHERE j.queue = l.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
              AND j.priority > coalesce(l.priority, l.low - 1) AND j.priority <= l.high
            ORDER BY j.priority
            LIMIT 1) up
     WHERE l.seen < %(max_groups)s::integer AND l.low < l.high
),
unlimited AS MATERIALIZED (
    SELECT l.queue, l.count, ready.at, ready.priority, ready.id, ready.run_at, ready.task = ANY (limited.tasks) AS is_limited
      FROM levels l
     CROSS JOIN limited
     CROSS JOIN LATERAL (
           SELECT *
             FROM (SELECT j.ctid AS at, j.priority, j.id, j.run_at, j.task
                     FROM pgworkers.job j
                    WHERE j.queue = l.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                      AND j.priority BETWEEN l.priority AND l.priority AND j.id >= l.first
                      AND l.last = 9223372036854775807
                      AND j.task = ANY (l.tasks) AND (j.expires_at IS NULL OR j.expires_at > now())
                    ORDER BY j.priority DESC, j.id
                    LIMIT l.count
                      FOR UPDATE SKIP LOCKED) behind
            UNION ALL
           SELECT *
             FROM (SELECT j.ctid AS at, j.priority, j.id, j.run_at, j.task
                     FROM pgworkers.job j
                    WHERE j.queue = l.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                      AND j.priority = l.priority AND j.priority BETWEEN l.priority AND l.priority
                      AND j.id BETWEEN l.first AND l.last
                      AND l.last < 9223372036854775807
                      AND j.task = ANY (l.tasks) AND (j.expires_at IS NULL OR j.expires_at > now())
                    ORDER BY j.id
                    LIMIT l.count
                      FOR UPDATE SKIP LOCKED) step) ready
),
limited_queues AS MATERIALIZED (
    SELECT array_agg(w.queue) AS queues, array_agg(w.count) AS counts, (SELECT tasks FROM sent) AS tasks
      FROM wants w
     CROSS JOIN LATERAL (
           SELECT FROM pgworkers.job j
            WHERE j.queue = w.queue AND j.state = 'ready' AND coalesce(j.behind_limit OR j.concurrency_key IS NOT NULL, false)
            ORDER BY j.task DESC
            LIMIT 1) waits
),
admitted AS MATERIALIZED (
    SELECT a.queue, w.count, a.at, a.priority, a.id, a.run_at
      FROM limited_queues g
     CROSS JOIN LATERAL pgworkers.admit_limited_jobs(g.queues, g.counts, g.tasks, true, %(max_groups)s::integer) a
      JOIN wants w ON w.queue = a.queue
     WHERE g.queues IS NOT NULL
),
chosen AS MATERIALIZED (
    SELECT c.at, c.count, row_number() OVER (PARTITION BY c.queue ORDER BY c.is_young, CASE WHEN c.is_young THEN -c.priority::bigint END,
                                                            c.id) AS nth
      FROM (SELECT c.*, c.run_at > now() - make_interval(secs => %(min_age_seconds)s::double precision) AS is_young
              FROM (SELECT queue, count, at, priority, id, run_at FROM unlimited WHERE NOT is_limited
                    UNION ALL SELECT * FROM admitted) c) c
)
UPDATE pgworkers.job j
   SET state = 'running', host = %(host)s::uuid, lease = j.lease + 1, attempt = j.attempt + 1, claimed_at = now()
 WHERE j.ctid = ANY (ARRAY(SELECT at FROM chosen WHERE nth <= count)) AND j.state = 'ready'
RETURNING /* include: claim_returning.fragment.sql */
