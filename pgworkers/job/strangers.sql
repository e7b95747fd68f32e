-- Tasks that no living host of their queue has, among the first `look` ready jobs of each queue; where none serves the queue, those
-- that no deploy has ever declared. The jobs are counted first, so that hosts are asked once for each task. Index: job_ready, one
-- range a queue. No guard: it only reads.
WITH alive AS MATERIALIZED (
    SELECT h.queues, h.tasks FROM pgworkers.host h WHERE h.renewed_at >= now() - h.lease AND h.state IN ('starting', 'running')
),
waiting AS MATERIALIZED (
    SELECT s.queue, s.task, count(*) AS jobs,
           max(extract(epoch FROM now() - CASE WHEN isfinite(s.run_at) THEN s.run_at END))::double precision AS oldest
      FROM unnest(%(queues)s::text[]) AS q (name)
     CROSS JOIN LATERAL (
           SELECT j.queue, j.task, j.run_at
             FROM pgworkers.job j
            WHERE j.queue = q.name AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
            ORDER BY j.priority DESC, j.id
            LIMIT %(look)s::integer) s
     GROUP BY s.queue, s.task
)
SELECT w.queue, w.task, w.jobs, w.oldest
  FROM waiting w
 WHERE CASE WHEN EXISTS (SELECT FROM alive a WHERE w.queue = ANY (a.queues))
            THEN NOT EXISTS (SELECT FROM alive a WHERE w.queue = ANY (a.queues) AND w.task = ANY (a.tasks))
            ELSE NOT EXISTS (SELECT FROM pgworkers.task t WHERE t.name = w.task) END
 ORDER BY w.jobs DESC, w.task
 LIMIT 100
