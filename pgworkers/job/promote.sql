-- Scheduled jobs whose time has come become ready, the earliest first. Bounded, skips what others have locked.
-- Index: job_scheduled, then the primary key. Guard: state = 'scheduled' under the row lock.
WITH due AS MATERIALIZED (
    SELECT j.id
      FROM pgworkers.job j
     WHERE j.state = 'scheduled' AND j.run_at <= now()
     ORDER BY j.run_at, j.id
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE pgworkers.job j
       SET state = 'ready'
     WHERE j.id = ANY (ARRAY(SELECT id FROM due)) AND j.state = 'scheduled'
    RETURNING j.queue
),
told AS MATERIALIZED (
    SELECT pg_notify('pgworkers', 'ready:' || queue) FROM (SELECT DISTINCT queue FROM moved) q
)
SELECT (SELECT count(*) FROM moved),
       (SELECT extract(epoch FROM j.run_at - now())::double precision
          FROM pgworkers.job j
         WHERE j.state = 'scheduled' AND j.run_at > now()
         ORDER BY j.run_at
         LIMIT 1),
       (SELECT count(*) FROM told)
