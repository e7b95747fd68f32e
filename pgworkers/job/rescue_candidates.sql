-- The jobs that rescue.sql would take, for the case that it cannot take them in one statement. Index: job_running, in the ranges between the
-- ids of live hosts. Reads only; the guard is in the rescue of each job.
SELECT held.id
  FROM pgworkers.lost_host_ranges(%(host)s::uuid, %(clock)s::timestamptz) g
 CROSS JOIN LATERAL (
       SELECT j.id FROM pgworkers.job j WHERE j.host > g.after_id AND j.host < g.before_id ORDER BY j.host LIMIT %(limit)s::bigint) held
 ORDER BY held.id
 LIMIT %(limit)s::bigint
