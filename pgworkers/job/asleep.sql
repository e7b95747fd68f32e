-- Of which queues this host wants to be notified, from now on: exactly these. Guard: the host's row. Index: asleep_host.
WITH awake AS (
    DELETE FROM pgworkers.asleep a WHERE a.host = %(host)s::uuid AND a.queue <> ALL (%(queues)s::text[]) RETURNING a.queue
),
dozed AS (
    INSERT INTO pgworkers.asleep (queue, host)
    SELECT q.name, h.id FROM pgworkers.host h CROSS JOIN unnest(%(queues)s::text[]) AS q (name) WHERE h.id = %(host)s::uuid
    ON CONFLICT DO NOTHING
    RETURNING queue
)
SELECT (SELECT count(*) FROM awake), (SELECT count(*) FROM dozed)
