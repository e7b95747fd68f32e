-- How many jobs a filter means, before something is done to all of them.
SELECT count(*)
  FROM pgworkers.jobs
 WHERE (%(states)s::pgworkers.job_state[] IS NULL OR state = ANY (%(states)s::pgworkers.job_state[]))
   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
   AND (%(task)s::text IS NULL OR task = %(task)s::text)
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
   AND (%(before)s::bigint IS NULL OR id < %(before)s::bigint)
