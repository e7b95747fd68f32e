-- Insert the row of a queue if it is missing. It is never overwritten: what operators tuned stays. Only declared_cluster_workers and declared_retention
-- belong to the deploy.
INSERT INTO pgworkers.queue AS q (name, declared_cluster_workers, declared_retention)
SELECT d.name, d.total, make_interval(secs => d.retention)
  FROM unnest(%(names)s::text[], %(known)s::boolean[], %(totals)s::integer[], %(retentions)s::double precision[])
    AS d (name, known, total, retention)
 WHERE NOT EXISTS (SELECT FROM pgworkers.queue o
                    WHERE o.name = d.name
                      AND (NOT d.known OR (o.declared_cluster_workers IS NOT DISTINCT FROM d.total
                                           AND o.declared_retention IS NOT DISTINCT FROM make_interval(secs => d.retention))))
 ORDER BY d.name
ON CONFLICT (name) DO UPDATE
   SET declared_cluster_workers = excluded.declared_cluster_workers, declared_retention = excluded.declared_retention
RETURNING q.name, q.xmax = 0
