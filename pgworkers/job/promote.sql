-- Make scheduled jobs ready whose time has come, the earliest first. Bounded; skips rows that others have locked. Jobs that wait for others
-- (after=) are released by settle_dependents() in the schema, and by dependency_link.sql.
-- Index: job_scheduled, then by ctid (see claim.sql), with a guard that cannot match the predicate of job_scheduled: if the planner believed
-- that index empty, it would otherwise read it as a whole. Guard: state = 'scheduled' under the row lock.
WITH due AS MATERIALIZED (
    SELECT j.ctid AS at
      FROM pgworkers.job j
     WHERE j.state = 'scheduled' AND j.run_at <= now()
     ORDER BY j.run_at, j.id
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE pgworkers.job j
       SET state = 'ready'
     WHERE j.ctid = ANY (ARRAY(SELECT at FROM due)) AND j.state::text = 'scheduled'
    RETURNING j.queue, j.task
),
notified AS MATERIALIZED (
    SELECT pgworkers.notify_ready(queue, array_agg(task::text), count(*)) FROM moved GROUP BY queue
)
SELECT (SELECT count(*) FROM moved),
       (SELECT extract(epoch FROM least(j.run_at, pgworkers.far_future()) - now())::double precision
          FROM pgworkers.job j
         WHERE j.state = 'scheduled' AND j.run_at > now()
         ORDER BY j.run_at
         LIMIT 1),
       (SELECT count(*) FROM notified)
