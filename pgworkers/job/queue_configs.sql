-- What operators have tuned, and the number of workers over all hosts if it is limited: the operator's number for the cluster, else the
-- operator's number for each host, else the app's. Index: the primary key.
SELECT q.name, q.paused, q.workers, q.cluster_workers,
       greatest(extract(epoch FROM q.throttled_until - now()), 0)::double precision, q.throttle_level,
       coalesce(q.cluster_workers, CASE WHEN q.workers IS NULL THEN q.declared_cluster_workers END),
       extract(epoch FROM now() - q.throttled_until)::double precision
  FROM pgworkers.queue q
 WHERE q.name = ANY (%(names)s::text[])
 ORDER BY q.name
