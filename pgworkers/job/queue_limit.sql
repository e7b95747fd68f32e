-- An operator's limit for a task or a key. Jobs of the task that run already are counted from now on: index job_running, rows
-- that somebody else is just ending are skipped. Hosts are told to look: a limit may have been raised.
WITH put AS (
    INSERT INTO pgworkers.concurrency AS c (kind, name, slots)
    VALUES (%(kind)s::text, %(name)s::text, %(slots)s::integer)
    ON CONFLICT (kind, name) DO UPDATE SET slots = excluded.slots, updated_at = now()
    RETURNING c.name
),
running AS MATERIALIZED (
    SELECT j.ctid AS at
      FROM pgworkers.job j
     WHERE j.host IS NOT NULL AND j.task = %(name)s::text AND NOT j.gated AND %(kind)s::text = 'task'
       FOR UPDATE SKIP LOCKED
),
counted AS (
    UPDATE pgworkers.job j SET gated = true WHERE j.ctid = ANY (ARRAY(SELECT at FROM running))
)
SELECT name, pgworkers.tell('ready:') FROM put
