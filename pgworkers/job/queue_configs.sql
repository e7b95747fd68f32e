-- What operators tuned. Index: the primary key.
SELECT q.name, q.paused, q.workers, q.cluster_workers,
       greatest(extract(epoch FROM q.throttled_until - now()), 0)::double precision
  FROM pgworkers.queue q
 WHERE q.name = ANY (%(names)s::text[])
 ORDER BY q.name
