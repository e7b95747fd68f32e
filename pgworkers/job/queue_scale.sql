-- Set the number of workers of a queue: on each host, over all hosts, or as the app declares. A trigger notifies the hosts. Index: the primary
-- key.
UPDATE pgworkers.queue q
   SET workers = %(workers)s::integer, cluster_workers = %(cluster)s::integer, updated_at = now()
 WHERE q.name = %(name)s::text
RETURNING q.name
