-- What was done to a job from outside, the last first. Index: operation_job.
SELECT o.at, o.verb, o.login, o.os_user, o.reason, o.state::text
  FROM pgworkers.operation o
 WHERE o.job_id = %(id)s::bigint
 ORDER BY o.id DESC
 LIMIT 100
