-- Pause or resume a queue. Its hosts are notified. Index: the primary key.
WITH changed AS (
    UPDATE pgworkers.queue q
       SET paused = %(paused)s::boolean, updated_at = now()
     WHERE q.name = %(name)s::text
    RETURNING q.name
)
SELECT name, pgworkers.notify('queue:' || name) FROM changed
