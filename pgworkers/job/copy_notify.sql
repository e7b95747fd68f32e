-- One notification per queue, however many jobs.
SELECT pgworkers.tell('ready:' || queue) FROM unnest(%(queues)s::text[]) AS q (queue)
