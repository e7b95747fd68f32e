-- The ids of the jobs that a filter means, the newest first; `before` is where the last page ended. Index: the primary keys,
-- backwards from there. Nothing else of a job is read: a page may be large.
SELECT id
  FROM pgworkers.jobs
 WHERE (%(states)s::pgworkers.job_state[] IS NULL OR state = ANY (%(states)s::pgworkers.job_state[]))
   AND (%(queues)s::text[] IS NULL OR queue = ANY (%(queues)s::text[]))
   AND (%(tasks)s::text[] IS NULL OR task = ANY (%(tasks)s::text[]))
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
   AND id < coalesce(%(before)s::bigint, 9223372036854775807)
 ORDER BY id DESC
 LIMIT %(limit)s::bigint
