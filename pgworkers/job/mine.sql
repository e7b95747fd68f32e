-- Which jobs the tables say this host holds, claimed at least so long ago. Reads only. Index: job_running.
SELECT j.id, j.lease
  FROM pgworkers.job j
 WHERE j.host = %(host)s::uuid AND j.claimed_at <= now() - make_interval(secs => %(age)s::double precision)
 ORDER BY j.id
