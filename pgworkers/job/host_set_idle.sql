-- Set the queues of which this host wants to be notified: exactly these. Returns the queues for which no other host was idle: no host may have
-- been notified of a job that was enqueued a moment ago. Guard: the host's row. Index: idle_host_host, the primary key.
WITH awake AS (
    DELETE FROM pgworkers.idle_host a WHERE a.host = %(host)s::uuid AND a.queue <> ALL (%(queues)s::text[]) RETURNING a.queue
),
dozed AS (
    INSERT INTO pgworkers.idle_host (queue, host)
    SELECT q.name, h.id FROM pgworkers.host h CROSS JOIN unnest(%(queues)s::text[]) AS q (name) WHERE h.id = %(host)s::uuid
    ON CONFLICT DO NOTHING
    RETURNING queue
)
SELECT q.name
  FROM unnest(%(queues)s::text[]) AS q (name)
 WHERE NOT EXISTS (SELECT FROM pgworkers.idle_host a WHERE a.queue = q.name AND a.host <> %(host)s::uuid)
