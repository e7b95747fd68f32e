-- What a burst still waits for: running, ready or due jobs of tasks the host knows, and those waiting for a retry.
-- Index: job_ready, job_running, job_scheduled.
SELECT count(*)
  FROM pgworkers.job
 WHERE queue = ANY (%(queues)s::text[])
   AND (state = 'running'
        OR (task = ANY (%(tasks)s::text[])
            AND (state = 'ready' OR (state = 'scheduled' AND (attempt > 0 OR run_at <= now())))))
