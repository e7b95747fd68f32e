-- Tasks that no deploy has declared, among the first `look` ready jobs of each queue. Index: job_ready, one range a queue.
-- No guard: it only reads.
SELECT s.queue, s.task, count(*), max(extract(epoch FROM now() - s.run_at))::double precision
  FROM unnest(%(queues)s::text[]) AS q (name)
 CROSS JOIN LATERAL (
       SELECT j.queue, j.task, j.run_at
         FROM pgworkers.job j
        WHERE j.queue = q.name AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
        ORDER BY j.priority DESC, j.id
        LIMIT %(look)s::integer) s
 WHERE NOT EXISTS (SELECT FROM pgworkers.task t WHERE t.name = s.task)
 GROUP BY s.queue, s.task
 ORDER BY count(*) DESC, s.task
 LIMIT 100
