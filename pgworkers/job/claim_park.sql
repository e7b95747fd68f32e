-- Move the jobs of tasks that a host does not know out of the way of its claims: from job_ready to job_ready_limited, where one probe skips all
-- jobs of such a task. Nothing moves them back: a host that knows the task claims them from there. Reads the first `max_rows` jobs of the queue.
-- Returns how many of each task it moved; then how many it read, the place of the last one, and the newest id of all.
-- Guard: state = 'ready' under FOR UPDATE SKIP LOCKED. Index: job_ready, then job_pkey.
WITH seen AS MATERIALIZED (
    SELECT j.id, j.task, j.priority
      FROM pgworkers.job j
     WHERE j.queue = %(queue)s::text AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
     ORDER BY j.priority DESC, j.id
     LIMIT %(max_rows)s::integer
),
unknown AS MATERIALIZED (
    SELECT locked.at
      FROM (SELECT s.id FROM seen s WHERE s.task <> ALL (%(tasks)s::text[]) ORDER BY s.id) s
     CROSS JOIN LATERAL (
           SELECT j.ctid AS at
             FROM pgworkers.job j
            WHERE j.id BETWEEN s.id AND s.id AND j.state = 'ready' AND NOT j.behind_limit
            ORDER BY j.id
              FOR UPDATE SKIP LOCKED) locked
),
parked AS (
    UPDATE pgworkers.job j SET behind_limit = true
     WHERE j.ctid = ANY (ARRAY(SELECT at FROM unknown)) AND j.state = 'ready'
    RETURNING j.task
)
SELECT p.task, count(*), NULL::integer, NULL::bigint, NULL::bigint FROM parked p GROUP BY p.task
UNION ALL
(SELECT NULL, count(*) OVER (), s.priority, s.id, pg_sequence_last_value('pgworkers.job_id_seq'::regclass)
   FROM seen s ORDER BY s.priority, s.id DESC LIMIT 1)
