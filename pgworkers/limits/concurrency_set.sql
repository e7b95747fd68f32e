-- Set an operator's limit for a task or a key. Jobs of the task that already run count from now on: limit_running_jobs(). Hosts are notified,
-- because a limit may have been raised. Guard: the primary key of concurrency.
WITH put AS (
    INSERT INTO pgworkers.concurrency AS c (kind, name, slots)
    VALUES (%(kind)s::text, %(name)s::text, %(slots)s::integer)
    ON CONFLICT (kind, name) DO UPDATE SET slots = excluded.slots, updated_at = now()
    RETURNING c.name
)
SELECT name, CASE WHEN %(kind)s::text = 'task' THEN pgworkers.limit_running_jobs(name) END, pgworkers.notify('ready:') FROM put
