-- Jobs by filter, the newest first; `before` is where the last page ended. Index: the primary keys, backwards.
SELECT id, state::text, queue, task, args::text, priority, attempt, max_attempts, crashes, lease, host, created_at,
       nullif(run_at, pgworkers.never()), started_at, finished_at, verdict, result::text, error, unique_key, progress::text,
       checkpoint::text, meta::text, cancel_at, duration, cpu_seconds, peak_rss, batch_id, worker, enqueued_by
  FROM pgworkers.jobs
 WHERE (%(states)s::pgworkers.job_state[] IS NULL OR state = ANY (%(states)s::pgworkers.job_state[]))
   AND (%(queues)s::text[] IS NULL OR queue = ANY (%(queues)s::text[]))
   AND (%(tasks)s::text[] IS NULL OR task = ANY (%(tasks)s::text[]))
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
   AND (%(before)s::bigint IS NULL OR id < %(before)s::bigint)
 ORDER BY id DESC
 LIMIT %(limit)s::bigint
