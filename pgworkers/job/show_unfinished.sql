-- What a burst still waits for: running jobs, ready or due ones of tasks the host knows, and those waiting for a retry. Not what only
-- an operator can set going: a paused queue, one without workers, a limit of 0; show_left.sql tells of it. A throttle ends by itself.
-- A job whose links are new, or whose parent has ended, may begin at once, when the leader has settled them.
-- Index: job_ready, job_lane, job_running, job_scheduled, dependency_new.
WITH open AS MATERIALIZED (
    SELECT n.name
      FROM unnest(%(queues)s::text[]) AS n (name)
      LEFT JOIN pgworkers.queue q ON q.name = n.name
     WHERE q.name IS NULL OR (NOT q.paused AND coalesce(q.cluster_workers, q.workers, 1) > 0)
),
shut AS MATERIALIZED (
    SELECT c.kind, c.name FROM pgworkers.concurrency c WHERE c.slots = 0
),
waiting AS (
    SELECT j.task, j.concurrency_key AS key
      FROM open o JOIN pgworkers.job j ON j.queue = o.name AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
    UNION ALL
    SELECT j.task, j.concurrency_key
      FROM open o JOIN pgworkers.job j ON j.queue = o.name AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL)
    UNION ALL
    SELECT j.task, j.concurrency_key
      FROM pgworkers.job j
     WHERE j.state = 'scheduled' AND j.run_at < pgworkers.never() AND (j.attempt > 0 OR j.run_at <= now())
       AND j.queue = ANY (ARRAY(SELECT name FROM open))
    UNION ALL
    SELECT j.task, j.concurrency_key
      FROM pgworkers.dependency d JOIN pgworkers.job j ON j.id = d.job_id AND j.queue = ANY (ARRAY(SELECT name FROM open))
     WHERE NOT d.linked
    UNION ALL
    SELECT j.task, j.concurrency_key
      FROM pgworkers.ended_parent e
      JOIN pgworkers.dependency d ON d.parent_id = e.id AND d.job_id > e.done_to AND d.linked
       AND (d.on_failed <> 'wait' OR EXISTS (SELECT FROM pgworkers.history h WHERE h.id = e.id AND h.state = 'succeeded'))
      JOIN pgworkers.job j ON j.id = d.job_id AND j.queue = ANY (ARRAY(SELECT name FROM open))
)
SELECT (SELECT count(*) FROM pgworkers.job j WHERE j.host IS NOT NULL AND j.queue = ANY (%(queues)s::text[]))
     + (SELECT count(*) FROM waiting w
         WHERE w.task = ANY (%(tasks)s::text[])
           AND NOT EXISTS (SELECT FROM shut s WHERE (s.kind = 'task' AND s.name = w.task) OR (s.kind = 'key' AND s.name = w.key)))
