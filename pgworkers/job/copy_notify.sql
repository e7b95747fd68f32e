-- One notification per queue, however many jobs.
SELECT pg_notify('pgworkers', 'ready:' || queue) FROM unnest(%(queues)s::text[]) AS q (queue)
