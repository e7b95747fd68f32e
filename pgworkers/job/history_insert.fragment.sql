-- Fragment: insert the rows of the CTE `ended` into history. `ended` has all columns of `job`, and these, which the end sets:
--   end_state, end_verdict                                     the terminal state, and how the last attempt ended
--   end_args, end_attempt, end_crashes, end_checkpoint, end_progress, end_errors     their last values
--   started_at, duration, cpu_seconds, peak_rss, result        of the last attempt; NULL if there was none
-- SQL functions end waiting jobs by pgworkers.archive_waiting_jobs(), which has the other list of these columns.
INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, host, attempt, crashes, max_attempts,
                               max_crashes, created_at, run_at, started_at, duration, cpu_seconds, peak_rss, deadline_at,
                               timeout, memory, unique_key, concurrency_key, checkpoint, progress, result, errors, meta,
                               batch_id, has_links, enqueued_by)
SELECT id, end_state, end_verdict, priority, queue, task, end_args, lease, host, end_attempt, end_crashes, max_attempts,
       max_crashes, created_at, run_at, started_at, duration, cpu_seconds, peak_rss, deadline_at,
       timeout, memory, unique_key, concurrency_key, end_checkpoint, end_progress, result, end_errors, meta,
       batch_id, has_links, enqueued_by
  FROM ended
