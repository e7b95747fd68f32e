-- Send one notification per queue, however many jobs. Also runs on users' connections: see enqueue.sql.
SELECT pgworkers.notify('ready:' OPERATOR(pg_catalog.||) q.queue)
  FROM pg_catalog.unnest(%(queues)s::pg_catalog.text[]) AS q (queue)
