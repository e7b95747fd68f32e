-- One job, live or finished. JSON as text: job/queries.py says why. Index: the primary keys.
SELECT id, state::text, queue, task, args::text, priority, attempt, max_attempts, crashes, lease, host, created_at,
       nullif(run_at, pgworkers.far_future()), started_at, finished_at, verdict, result::text, error, unique_key, progress::text,
       checkpoint::text, meta::text, cancel_at, duration, cpu_seconds, peak_rss, batch_id, worker, enqueued_by
  FROM pgworkers.jobs
 WHERE id = %(id)s::bigint
 ORDER BY finished_at DESC NULLS FIRST
 LIMIT 1
