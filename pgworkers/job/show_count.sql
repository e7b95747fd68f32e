-- How many jobs a filter means, before something is done to all of them.
SELECT count(*)
  FROM pgworkers.jobs
 WHERE (%(states)s::pgworkers.job_state[] IS NULL OR state = ANY (%(states)s::pgworkers.job_state[]))
   AND (%(queues)s::text[] IS NULL OR queue = ANY (%(queues)s::text[]))
   AND (%(tasks)s::text[] IS NULL OR task = ANY (%(tasks)s::text[]))
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
   AND (%(before)s::bigint IS NULL OR id < %(before)s::bigint)
