-- The attempts of one job that did not succeed, in order, the last `max_rows` of them. Index: attempt_job.
SELECT a.attempt, a.lease, a.host, a.queue, a.task, a.verdict, a.started_at, a.finished_at, a.duration, a.cpu_seconds, a.peak_rss,
       a.error, a.traceback, a.stack, a.exit_status, a.output, a.progress::text, a.rungs::text, a.worker, a.version
  FROM (SELECT *
          FROM pgworkers.attempts
         WHERE job_id = %(id)s::bigint
         ORDER BY lease DESC, finished_at DESC
         LIMIT %(max_rows)s::bigint) a
 ORDER BY a.lease, a.finished_at
