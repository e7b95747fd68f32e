-- Tasks that no live host of their queue knows, among the first `max_rows` ready jobs of each queue; if no host serves the queue, those that no
-- deploy has ever declared. Also among the jobs behind limits, where hosts park such jobs: the first 100 tasks of each queue, and up to `max_rows`
-- jobs of each. The jobs are counted first, so that hosts are checked once for each task. Indexes: job_ready and job_ready_limited, one range
-- per queue or task. No guard: it only reads.
WITH RECURSIVE alive AS MATERIALIZED (
    SELECT h.queues, h.tasks FROM pgworkers.host h WHERE h.renewed_at >= now() - h.lease AND h.state IN ('starting', 'running')
),
lanes AS (
    SELECT q.name AS queue, ''::text AS task, 0 AS seen FROM unnest(%(queues)s::text[]) AS q (name)
    UNION ALL
    SELECT l.queue, n.task, l.seen + 1
      FROM lanes l
     CROSS JOIN LATERAL (
           SELECT j.task::text AS task
             FROM pgworkers.job j
            WHERE j.queue = l.queue AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL) AND j.task > l.task
            ORDER BY j.task
            LIMIT 1) n
     WHERE l.seen < 100
),
found AS MATERIALIZED (
    SELECT s.queue::text AS queue, s.task::text AS task, count(*) AS jobs, min(s.run_at) FILTER (WHERE isfinite(s.run_at)) AS oldest
      FROM unnest(%(queues)s::text[]) AS q (name)
     CROSS JOIN LATERAL (
           SELECT j.queue, j.task, j.run_at
             FROM pgworkers.job j
            WHERE j.queue = q.name AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
            ORDER BY j.priority DESC, j.id
            LIMIT %(max_rows)s::integer) s
     GROUP BY s.queue, s.task
    UNION ALL
    SELECT l.queue, l.task, NULL, NULL FROM lanes l WHERE l.seen > 0
)
SELECT f.queue, f.task, sum(coalesce(f.jobs, parked.jobs))::bigint,
       max(extract(epoch FROM now() - coalesce(f.oldest, parked.oldest)))::double precision
  FROM found f
  LEFT JOIN LATERAL (
       SELECT count(*) AS jobs, min(p.run_at) FILTER (WHERE isfinite(p.run_at)) AS oldest
         FROM (SELECT j.run_at
                 FROM pgworkers.job j
                WHERE j.queue = f.queue AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL) AND j.task = f.task
                ORDER BY pgworkers.concurrency_group(j.concurrency_key)
                LIMIT %(max_rows)s::integer) p) parked ON f.jobs IS NULL
 WHERE CASE WHEN EXISTS (SELECT FROM alive a WHERE f.queue = ANY (a.queues))
            THEN NOT EXISTS (SELECT FROM alive a WHERE f.queue = ANY (a.queues) AND f.task = ANY (a.tasks))
            ELSE NOT EXISTS (SELECT FROM pgworkers.task t WHERE t.name = f.task) END
 GROUP BY f.queue, f.task
 ORDER BY sum(coalesce(f.jobs, parked.jobs)) DESC, f.task
 LIMIT 100
