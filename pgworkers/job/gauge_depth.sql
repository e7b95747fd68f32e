-- How much waits in each queue, at a bounded cost: no count goes beyond `max_count`, whatever the backlog; what is scheduled is
-- bounded over all queues together, what runs by `running`, what a limit may hold up by `held`. Jobs that a host claimed ahead, beyond
-- its workers of the queue, wait in its buffer and count as ready; while a session locks the table `host` they count as running, and the
-- answer is not exact. With each count that went so far comes the place of the last job counted, from which the slices (gauge_depth_ready.sql, gauge_depth_scheduled.sql) go on.
-- Queues: the declared ones, and undeclared ones with ready jobs.
-- Indexes: job_ready (one range per queue; a loose scan for strangers in the gaps between the declared names), job_ready_limited,
-- job_scheduled, job_running. While a vacuum is held back, the ranges are full of entries of jobs that are gone: each is
-- walked over once. Of more than `max_count` ready jobs, the oldest is sought among the first `max_rows` of each of the lowest `max_rows`
-- priorities, where it is but for jobs that became ready again out of the order of their ids. No guard: it only reads.
WITH RECURSIVE names AS (
    SELECT name FROM pgworkers.queue
    UNION
    SELECT ''
),
gaps AS MATERIALIZED (
    SELECT n.name AS above, lead(n.name) OVER (ORDER BY n.name) AS below FROM names n
),
strangers AS (
    SELECT g.above AS queue, g.below, false AS found FROM gaps g
    UNION ALL
    SELECT next.queue, s.below, true
      FROM strangers s
     CROSS JOIN LATERAL (
           (SELECT j.queue FROM pgworkers.job j
             WHERE j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL AND j.queue > s.queue AND j.queue < s.below
             ORDER BY j.queue LIMIT 1)
           UNION ALL
           (SELECT j.queue FROM pgworkers.job j
             WHERE j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL AND j.queue > s.queue AND s.below IS NULL
             ORDER BY j.queue LIMIT 1)) next
),
queues AS MATERIALIZED (
    SELECT name FROM pgworkers.queue
    UNION
    (SELECT s.queue FROM strangers s WHERE s.found LIMIT 1000)
),
free AS MATERIALIZED (
    SELECT q.name, counted.jobs, counted.run_at, counted.place
      FROM queues q
     CROSS JOIN LATERAL (
           SELECT count(*) AS jobs, min(f.run_at) FILTER (WHERE isfinite(f.run_at)) AS run_at, max(ARRAY[-f.priority::bigint, f.id]) AS place
             FROM (SELECT j.run_at, j.priority, j.id FROM pgworkers.job j
                    WHERE j.queue = q.name AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                    ORDER BY j.priority DESC, j.id
                    LIMIT %(max_count)s::bigint) f) counted
),
levels AS (
    SELECT f.name, NULL::bigint AS priority, 0 AS seen FROM free f WHERE f.jobs >= %(max_count)s::bigint
    UNION ALL
    SELECT l.name, up.priority::bigint, l.seen + 1
      FROM levels l
     CROSS JOIN LATERAL (
           SELECT j.priority
             FROM pgworkers.job j
            WHERE j.queue = l.name AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
              AND j.priority > coalesce(l.priority, -2147483649)
            ORDER BY j.priority
            LIMIT 1) up
     WHERE l.seen < %(max_rows)s::integer
),
oldest AS MATERIALIZED (
    SELECT l.name, min(ready.run_at) FILTER (WHERE isfinite(ready.run_at)) AS run_at
      FROM levels l
     CROSS JOIN LATERAL (
           SELECT j.run_at
             FROM pgworkers.job j
            WHERE j.queue = l.name AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
              AND j.priority BETWEEN l.priority AND l.priority
            ORDER BY j.priority DESC, j.id
            LIMIT %(max_rows)s::integer) ready
     GROUP BY l.name
),
later AS MATERIALIZED (
    SELECT j.queue, j.run_at, j.id
      FROM pgworkers.job j
     WHERE j.state = 'scheduled'
     ORDER BY j.run_at, j.id
     LIMIT %(max_count)s::bigint
),
scheduled AS MATERIALIZED (
    SELECT l.queue, count(*) AS jobs FROM later l GROUP BY l.queue
),
latest AS MATERIALIZED (
    SELECT l.run_at, l.id
      FROM later l
     WHERE (SELECT count(*) FROM later) >= %(max_count)s::bigint
     ORDER BY l.run_at DESC, l.id DESC
     LIMIT 1
),
workers AS MATERIALIZED (
    SELECT w.host, w.queue, w.workers FROM pgworkers.worker_counts() w
),
running AS MATERIALIZED (
    SELECT c.queue, sum(c.jobs) AS jobs, sum(least(c.jobs, w.workers)) AS begun
      FROM (SELECT r.queue, r.host, count(*) AS jobs
              FROM (SELECT j.queue, j.host FROM pgworkers.job j WHERE j.host IS NOT NULL ORDER BY j.host
                     LIMIT %(running)s::bigint) r
             GROUP BY r.queue, r.host) c
      LEFT JOIN workers w ON w.host = c.host AND w.queue = c.queue
     GROUP BY c.queue
)
SELECT f.name, (f.jobs + held.jobs + coalesce(running.jobs - running.begun, 0))::bigint, coalesce(scheduled.jobs, 0),
       coalesce(running.begun, 0)::bigint,
       greatest(extract(epoch FROM now() - least(f.run_at, oldest.run_at, held.run_at)), 0)::double precision,
       coalesce(c.paused, false), coalesce(c.cluster_workers, CASE WHEN c.workers IS NULL THEN c.declared_cluster_workers END),
       coalesce(c.throttled_until > now(), false), NOT EXISTS (SELECT FROM workers w WHERE w.host IS NULL),
       CASE WHEN f.jobs >= %(max_count)s::bigint THEN f.place END, latest.run_at::text, latest.id
  FROM free f
  LEFT JOIN pgworkers.queue c ON c.name = f.name
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs, min(h.run_at) FILTER (WHERE isfinite(h.run_at)) AS run_at
         FROM (SELECT j.run_at FROM pgworkers.job j
                WHERE j.queue = f.name AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
                ORDER BY j.task
                LIMIT %(held)s::bigint) h) held
  LEFT JOIN oldest ON oldest.name = f.name
  LEFT JOIN scheduled ON scheduled.queue = f.name
  LEFT JOIN running ON running.queue = f.name
  LEFT JOIN latest ON true
 ORDER BY f.name
