-- What a burst still waits for: ready, running, and waiting for a retry. Index: job_ready, job_running, job_scheduled.
SELECT count(*)
  FROM pgworkers.job
 WHERE queue = ANY (%(queues)s::text[]) AND (state IN ('ready', 'running') OR (state = 'scheduled' AND attempt > 0))
