-- The post-mortems of one job, in the order they happened. Index: attempt_job.
SELECT attempt, lease, host, queue, task, verdict, started_at, finished_at, duration, cpu_seconds, peak_rss, error,
       traceback, stack, exit_status, output, progress::text, rungs::text, worker, version
  FROM pgworkers.attempts
 WHERE job_id = %(id)s::bigint
 ORDER BY lease, finished_at
