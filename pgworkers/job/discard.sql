-- Give up a job that does not run: dead, verdict discarded. Answers the state it then has. Index: the primary keys.
-- Guard: not running, under the row lock.
WITH held AS MATERIALIZED (
    SELECT j.id, j.state FROM pgworkers.job j WHERE j.id = %(id)s::bigint FOR UPDATE
),
gone AS (
    DELETE FROM pgworkers.job j USING held h WHERE j.id = h.id AND h.state <> 'running' RETURNING j.*
),
kept AS (
    INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes, max_attempts,
                                   max_crashes, created_at, run_at, deadline_at, timeout, memory, unique_key,
                                   concurrency_key, checkpoint, progress, errors, meta)
    SELECT id, 'dead', 'discarded', priority, queue, task, args, lease, attempt, crashes, max_attempts, max_crashes,
           created_at, run_at, deadline_at, timeout, memory, unique_key, concurrency_key, checkpoint, progress,
           (errors || 'discarded by an operator'::text)[greatest(cardinality(errors) - 8, 1):], meta
      FROM gone
),
told AS MATERIALIZED (
    SELECT pg_notify('pgworkers_done', id::text) FROM gone
)
SELECT coalesce((SELECT 'dead' FROM gone), (SELECT state::text FROM held),
                (SELECT h.state::text FROM pgworkers.history h WHERE h.id = %(id)s::bigint
                  ORDER BY h.finished_at DESC LIMIT 1)),
       (SELECT count(*) FROM told)
