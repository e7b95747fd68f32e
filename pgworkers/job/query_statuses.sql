-- State and progress of jobs that are watched, without arguments and results. Index: the primary keys. Bounded by the number of ids.
SELECT id, state::text, attempt, progress::text, verdict, error
  FROM pgworkers.jobs
 WHERE id = ANY (%(ids)s::bigint[])
 ORDER BY id DESC, finished_at DESC NULLS FIRST
