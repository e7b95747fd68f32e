-- What a burst leaves behind, by queue, task and reason, the first `max_rows` jobs of it. Asked once, at the end.
-- Index: whatever the planner likes; the walk ends after `max_rows` rows.
SELECT l.queue, l.task, l.reason, count(*), extract(epoch FROM min(l.run_at) - now())::double precision
  FROM (SELECT j.queue, j.task,
               CASE WHEN j.state = 'running' THEN 'running'
                    WHEN j.task <> ALL (%(tasks)s::text[]) THEN 'unknown'
                    WHEN q.paused THEN 'paused'
                    WHEN coalesce(q.cluster_workers, q.workers, 1) = 0 THEN 'no workers'
                    WHEN EXISTS (SELECT FROM pgworkers.concurrency c
                                  WHERE c.slots = 0 AND ((c.kind = 'task' AND c.name = j.task)
                                                         OR (c.kind = 'key' AND c.name = j.concurrency_key))) THEN 'limit'
                    WHEN j.run_at >= pgworkers.far_future() THEN 'held'
                    WHEN j.run_at > now() THEN 'later'
                    ELSE 'new' END AS reason,
               CASE WHEN j.run_at < pgworkers.far_future() THEN greatest(j.run_at, 'epoch') END AS run_at
          FROM pgworkers.job j
          LEFT JOIN pgworkers.queue q ON q.name = j.queue
         WHERE j.queue = ANY (%(queues)s::text[])
         LIMIT %(max_rows)s::integer) l
 GROUP BY l.queue, l.task, l.reason
 ORDER BY l.queue, l.task, l.reason
