-- Pass on a notification of jobs that this host has no free worker for: it is no longer idle, and another idle host is notified of each queue,
-- if there is one. A host that passes a notification on deletes its own row, so a notification cannot go round in circles. Guard: the host's
-- own rows. Index: idle_host_host, the primary key.
WITH full_queue AS (
    SELECT q.name FROM unnest(%(queues)s::text[]) AS q (name)
),
awake AS (
    DELETE FROM pgworkers.idle_host a USING full_queue q WHERE a.host = %(host)s::uuid AND a.queue = q.name RETURNING a.queue
),
passed AS MATERIALIZED (
    SELECT pgworkers.notify_ready(q.name, %(tasks)s::text[], NULL, %(host)s::uuid)
      FROM full_queue q
     WHERE EXISTS (SELECT FROM pgworkers.idle_host a WHERE a.queue = q.name AND a.host <> %(host)s::uuid)
)
SELECT (SELECT count(*) FROM awake), (SELECT count(*) FROM passed)
