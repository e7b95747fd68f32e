-- The operations on a job, the last one first. Index: operation_job.
SELECT o.at, o.verb, o.login, o.os_user, o.reason, o.state::text
  FROM pgworkers.operation o
 WHERE o.job_id = %(id)s::bigint
 ORDER BY o.id DESC
 LIMIT 100
