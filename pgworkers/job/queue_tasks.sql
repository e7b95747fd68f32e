-- What the deployed app says about its tasks. Unchanged rows are not written; in name order, so that hosts starting at once
-- cannot deadlock.
INSERT INTO pgworkers.task AS t (name, queue, priority, max_attempts, max_crashes)
SELECT * FROM unnest(%(names)s::text[], %(queues)s::text[], %(priorities)s::integer[], %(max_attempts)s::integer[],
                     %(max_crashes)s::integer[]) AS n (name, queue, priority, max_attempts, max_crashes)
 ORDER BY name
ON CONFLICT (name) DO UPDATE
   SET queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
       max_crashes = excluded.max_crashes, updated_at = now()
 WHERE (t.queue, t.priority, t.max_attempts, t.max_crashes)
       IS DISTINCT FROM (excluded.queue, excluded.priority, excluded.max_attempts, excluded.max_crashes)
RETURNING t.name
