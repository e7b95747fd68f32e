-- Every concurrency limit with the number of jobs that run under it. Index: job_of_task, job_of_key.
WITH said AS (
    SELECT c.kind, c.name, c.slots, 'operator' AS said_by FROM pgworkers.concurrency c
    UNION ALL
    SELECT 'task', t.name, t.concurrency, 'app'
      FROM pgworkers.task t
     WHERE t.concurrency IS NOT NULL
       AND NOT EXISTS (SELECT FROM pgworkers.concurrency c WHERE c.kind = 'task' AND c.name = t.name)
)
SELECT s.kind, s.name, s.slots,
       CASE s.kind
            WHEN 'task' THEN (SELECT count(*) FROM pgworkers.job j
                               WHERE j.task = s.name AND j.host IS NOT NULL AND (j.gated OR j.concurrency_key IS NOT NULL))
            ELSE (SELECT count(*) FROM pgworkers.job j WHERE j.concurrency_key = s.name AND j.host IS NOT NULL) END,
       s.said_by
  FROM said s
 ORDER BY s.kind DESC, s.name
