-- The jobs that rescue.sql would take, for the case that it cannot take them in one statement. Index: job_running. It only
-- reads; the guard is in the rescue of each.
SELECT j.id
  FROM pgworkers.job j
  LEFT JOIN pgworkers.host h ON h.id = j.host
 WHERE j.host IS NOT NULL AND j.host <> %(host)s::uuid AND (h.id IS NULL OR h.renewed_at < now() - h.lease)
 ORDER BY j.id
 LIMIT %(limit)s::bigint
