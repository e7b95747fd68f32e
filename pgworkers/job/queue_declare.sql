-- A queue's row is made if it is missing and never overwritten: what operators tuned stays. Only declared_cluster is the
-- deploy's own.
INSERT INTO pgworkers.queue AS q (name, declared_cluster)
SELECT d.name, d.total
  FROM unnest(%(names)s::text[], %(known)s::boolean[], %(totals)s::integer[]) AS d (name, known, total)
 WHERE NOT EXISTS (SELECT FROM pgworkers.queue o
                    WHERE o.name = d.name AND (NOT d.known OR o.declared_cluster IS NOT DISTINCT FROM d.total))
 ORDER BY d.name
ON CONFLICT (name) DO UPDATE SET declared_cluster = excluded.declared_cluster
RETURNING q.name, q.xmax = 0
