-- What a burst still waits for: running jobs, ready or due ones of tasks the host knows, and those waiting for a retry. Not what only
-- an operator can set going: a paused queue, one without workers, a limit of 0; burst_left_behind.sql lists it. A throttle ends by itself.
-- A job whose links are new, or whose parent has ended, may begin at once, when the leader has settled them.
-- Answers how many were found; whether a part was left out of which the rest may have some; the queues whose first jobs are all of other tasks; and the
-- place to go on from (NULL: that was all). Bounded: each part looks at `max_rows` jobs, at those that hosts hold at `held`. Jobs that wait for a retry
-- stand among those for later, by time: of them a statement looks at a portion, and at all the rest again. A retry moves only to a later time.
-- A range of hosts: see query_search.sql. Index: job_ready, job_ready_limited, job_running, job_scheduled, dependency_new, the primary keys.
WITH RECURSIVE open AS MATERIALIZED (
    SELECT n.name
      FROM unnest(%(queues)s::text[]) AS n (name)
      LEFT JOIN pgworkers.queue q ON q.name = n.name
     WHERE q.name IS NULL OR (NOT q.paused AND coalesce(q.cluster_workers, q.workers, 1) > 0)
),
shut AS MATERIALIZED (
    SELECT c.kind, c.name FROM pgworkers.concurrency c WHERE c.slots = 0
),
known AS MATERIALIZED (
    SELECT t.name FROM unnest(%(tasks)s::text[]) AS t (name) WHERE t.name NOT IN (SELECT s.name FROM shut s WHERE s.kind = 'task')
),
held AS MATERIALIZED (
    SELECT j.queue FROM pgworkers.job j
     WHERE j.host BETWEEN '00000000-0000-0000-0000-000000000000' AND 'ffffffff-ffff-ffff-ffff-ffffffffffff'
     ORDER BY j.host, j.claimed_at
     LIMIT %(held)s::bigint
),
free AS MATERIALIZED (
    SELECT o.name AS queue, j.task, j.task IN (SELECT k.name FROM known k) AS awaited
      FROM open o
     CROSS JOIN LATERAL (
           SELECT j.task::text AS task
             FROM pgworkers.job j
            WHERE j.queue = o.name AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
            ORDER BY j.priority DESC, j.id
            LIMIT %(max_rows)s::bigint) j
),
groups AS (
    -- Of each queue and task the groups up to the first one that is not shut.
    SELECT o.name AS queue, k.name AS task, -9223372036854775808 AS group_hash, NULL::text AS key, 0 AS seen
      FROM open o CROSS JOIN known k
    UNION ALL
    SELECT l.queue, l.task, n.group_hash, n.key, l.seen + 1
      FROM groups l
     CROSS JOIN LATERAL (
           SELECT pgworkers.concurrency_group(j.concurrency_key) AS group_hash, j.concurrency_key::text AS key
             FROM pgworkers.job j
            WHERE j.queue = l.queue AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
              AND j.task = l.task AND pgworkers.concurrency_group(j.concurrency_key) > l.group_hash
            ORDER BY pgworkers.concurrency_group(j.concurrency_key), j.priority DESC, j.id
            LIMIT 1) n
     WHERE l.seen < %(max_rows)s::bigint AND (l.seen = 0 OR l.key IN (SELECT s.name FROM shut s WHERE s.kind = 'key'))
),
behind_limits AS MATERIALIZED (
    SELECT j.key
      FROM groups l
     CROSS JOIN LATERAL (
           SELECT j.concurrency_key::text AS key
             FROM pgworkers.job j
            WHERE j.queue = l.queue AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
              AND j.task = l.task AND pgworkers.concurrency_group(j.concurrency_key) >= l.group_hash
            ORDER BY pgworkers.concurrency_group(j.concurrency_key), j.priority DESC, j.id
            LIMIT %(max_rows)s::bigint) j
     WHERE l.seen > 0 AND (l.key IS NULL OR l.key NOT IN (SELECT s.name FROM shut s WHERE s.kind = 'key'))
),
due AS MATERIALIZED (
    SELECT j.queue::text AS queue, j.task::text AS task, j.concurrency_key::text AS key
      FROM pgworkers.job j
     WHERE j.state = 'scheduled' AND j.run_at <= now()
     ORDER BY j.run_at, j.id
     LIMIT %(max_rows)s::bigint
),
later AS MATERIALIZED (
    SELECT j.run_at, j.id, j.attempt, j.queue::text AS queue, j.task::text AS task, j.concurrency_key::text AS key
      FROM pgworkers.job j
     WHERE j.state = 'scheduled' AND j.run_at > now() AND j.run_at < pgworkers.far_future()
       AND (j.run_at, j.id) > (%(after_time)s::timestamptz, %(after_id)s::bigint)
     ORDER BY j.run_at, j.id
     LIMIT %(max_rows)s::bigint
),
links AS MATERIALIZED (
    SELECT d.job_id FROM pgworkers.dependency d WHERE NOT d.linked ORDER BY d.job_id LIMIT %(max_rows)s::bigint
),
parents AS MATERIALIZED (
    SELECT e.id, e.settled_up_to FROM pgworkers.ended_parent e ORDER BY e.id LIMIT %(parents)s::bigint
),
followers AS MATERIALIZED (
    SELECT d.parent_id, d.job_id, d.on_failed
      FROM parents e
     CROSS JOIN LATERAL (
           SELECT d.parent_id, d.job_id, d.on_failed
             FROM pgworkers.dependency d
            WHERE d.parent_id = e.id AND d.job_id > e.settled_up_to AND d.linked
            ORDER BY d.job_id
            LIMIT %(max_rows)s::bigint) d
),
waiting AS (
    SELECT d.queue, d.task, d.key FROM due d
    UNION ALL
    SELECT l.queue, l.task, l.key FROM later l WHERE l.attempt > 0
    UNION ALL
    SELECT j.queue, j.task, j.concurrency_key FROM links d JOIN pgworkers.job j ON j.id = d.job_id
    UNION ALL
    SELECT j.queue, j.task, j.concurrency_key
      FROM followers d JOIN pgworkers.job j ON j.id = d.job_id
     WHERE d.on_failed <> 'wait' OR EXISTS (SELECT FROM pgworkers.history h WHERE h.id = d.parent_id AND h.state = 'succeeded')
)
SELECT (SELECT count(*) FROM held h WHERE h.queue = ANY (%(queues)s::text[]))
     + (SELECT count(*) FROM free f WHERE f.awaited)
     + (SELECT count(*) FROM behind_limits b WHERE b.key IS NULL OR b.key NOT IN (SELECT s.name FROM shut s WHERE s.kind = 'key'))
     + (SELECT count(*) FROM waiting w
         WHERE w.queue IN (SELECT o.name FROM open o) AND w.task IN (SELECT k.name FROM known k)
           AND (w.key IS NULL OR w.key NOT IN (SELECT s.name FROM shut s WHERE s.kind = 'key'))),
       (SELECT count(*) FROM held) >= %(held)s::bigint OR (SELECT count(*) FROM due) >= %(max_rows)s::bigint
         OR (SELECT count(*) FROM links) >= %(max_rows)s::bigint OR (SELECT count(*) FROM parents) >= %(parents)s::bigint
         OR (SELECT count(*) FROM followers) >= %(max_rows)s::bigint OR (SELECT coalesce(max(l.seen), 0) FROM groups l) >= %(max_rows)s::bigint,
       ARRAY(SELECT f.queue FROM free f GROUP BY f.queue HAVING count(*) >= %(max_rows)s::bigint AND NOT bool_or(f.awaited)),
       (SELECT l.run_at::text FROM later l ORDER BY l.run_at, l.id OFFSET %(max_rows)s::bigint - 1 LIMIT 1),
       (SELECT l.id FROM later l ORDER BY l.run_at, l.id OFFSET %(max_rows)s::bigint - 1 LIMIT 1)
