-- Every concurrency limit with the number of jobs that run under it; of a limit for each key of a task, under the key that
-- has the most. Index: job_running_by_task, job_running_by_key.
WITH declared AS (
    SELECT c.kind, c.name, c.slots, 'operator' AS set_by FROM pgworkers.concurrency c
    UNION ALL
    SELECT 'task', t.name, t.concurrency, 'app'
      FROM pgworkers.task t
     WHERE t.concurrency IS NOT NULL
       AND NOT EXISTS (SELECT FROM pgworkers.concurrency c WHERE c.kind = 'task' AND c.name = t.name)
    UNION ALL
    SELECT 'each key of', t.name, t.concurrency_per_key, 'app' FROM pgworkers.task t WHERE t.concurrency_per_key IS NOT NULL
)
SELECT s.kind, s.name, s.slots,
       CASE s.kind
            WHEN 'task' THEN (SELECT count(*) FROM pgworkers.job j
                               WHERE j.task = s.name AND coalesce(j.host IS NOT NULL AND (j.behind_limit OR j.concurrency_key IS NOT NULL), false))
            WHEN 'each key of' THEN (SELECT coalesce(max(n), 0)
                                       FROM (SELECT count(*) AS n FROM pgworkers.job j
                                              WHERE j.task = s.name AND coalesce(j.host IS NOT NULL AND (j.behind_limit OR j.concurrency_key IS NOT NULL), false)
                                                AND j.concurrency_key IS NOT NULL
                                              GROUP BY j.concurrency_key) keys)
            ELSE (SELECT count(*) FROM pgworkers.job j
                   WHERE j.concurrency_key = s.name AND coalesce(j.host IS NOT NULL AND j.concurrency_key IS NOT NULL, false)) END,
       s.set_by
  FROM declared s
 ORDER BY s.kind = 'task' DESC, s.kind, s.name
