-- One step of a search, the newest jobs first: of the next `max_rows` jobs with ids below `before`, the first `limit` that the filter means,
-- the lowest id that was looked at, how many were, and whether hosts may hold more jobs than were looked at. Bounded by `max_rows`, whatever the tables hold and however few match. Jobs that
-- hosts hold are few, so a search for them alone takes the first `held` of them.
-- `live`, `only_held`, `ended` and `failed` say in which tables and by which index the wanted states are.
-- A range of hosts and not `IS NOT NULL`: without statistics the planner takes nearly all jobs for held and reads the table.
-- Indexes: the primary keys backwards, job_running, history_state backwards. No guard: it only reads.
WITH busy AS MATERIALIZED (
    SELECT w.host, w.job_id FROM pgworkers.worker w WHERE w.job_id IS NOT NULL
),
held AS MATERIALIZED (
    SELECT j.id, j.state, j.host, j.queue, j.task
      FROM pgworkers.job j
     WHERE %(only_held)s::boolean AND j.host BETWEEN '00000000-0000-0000-0000-000000000000' AND 'ffffffff-ffff-ffff-ffff-ffffffffffff'
     ORDER BY j.host, j.claimed_at
     LIMIT %(held)s::bigint
),
looked AS MATERIALIZED (
    SELECT l.id, l.state, l.host, l.queue, l.task
      FROM ((SELECT j.id, j.state, j.host, j.queue::text AS queue, j.task::text AS task
               FROM pgworkers.job j
              WHERE %(live)s::boolean AND j.id < %(before)s::bigint
              ORDER BY j.id DESC
              LIMIT %(max_rows)s::bigint)
            UNION ALL
            (SELECT h.id, h.state, h.host, h.queue::text, h.task::text FROM held h WHERE h.id < %(before)s::bigint)
            UNION ALL
            (SELECT h.id, h.state, NULL, h.queue, h.task
               FROM pgworkers.history h
              WHERE %(ended)s::boolean AND h.id < %(before)s::bigint
              ORDER BY h.id DESC
              LIMIT %(max_rows)s::bigint)
            UNION ALL
            (SELECT h.id, h.state, NULL, h.queue, h.task
               FROM pgworkers.history h
              WHERE 'dead' = ANY (%(failed)s::text[]) AND h.state = 'dead' AND h.id < %(before)s::bigint
              ORDER BY h.id DESC
              LIMIT %(max_rows)s::bigint)
            UNION ALL
            (SELECT h.id, h.state, NULL, h.queue, h.task
               FROM pgworkers.history h
              WHERE 'cancelled' = ANY (%(failed)s::text[]) AND h.state = 'cancelled' AND h.id < %(before)s::bigint
              ORDER BY h.id DESC
              LIMIT %(max_rows)s::bigint)) l
     ORDER BY l.id DESC
     LIMIT %(max_rows)s::bigint
)
SELECT ARRAY(SELECT l.id
               FROM looked l
              WHERE (%(states)s::pgworkers.job_state[] IS NULL
                     OR CASE WHEN l.state = 'running' AND (l.host, l.id) NOT IN (SELECT b.host, b.job_id FROM busy b)
                             THEN 'claimed' ELSE l.state END = ANY (%(states)s::pgworkers.job_state[]))
                AND (%(queues)s::text[] IS NULL OR l.queue = ANY (%(queues)s::text[]))
                AND (%(tasks)s::text[] IS NULL OR l.task = ANY (%(tasks)s::text[]))
              ORDER BY l.id DESC
              LIMIT %(limit)s::bigint),
       (SELECT min(l.id) FROM looked l),
       (SELECT count(*) FROM looked l),
       (SELECT count(*) FROM held) >= %(held)s::bigint
