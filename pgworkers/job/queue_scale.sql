-- How many workers a queue has: on each host, over all hosts, or as the app says. The hosts are told by a trigger. Index:
-- the primary key.
UPDATE pgworkers.queue q
   SET workers = %(workers)s::integer, cluster_workers = %(cluster)s::integer, updated_at = now()
 WHERE q.name = %(name)s::text
RETURNING q.name
