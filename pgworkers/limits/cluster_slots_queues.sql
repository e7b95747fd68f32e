-- The queues whose workers are limited over all hosts, their totals, and the live hosts that serve them, in the order of their ids. A host that
-- drains gets no more; what it has counts until it is gone. `clock` is the database's time as the asking host estimates it. Small tables, read
-- as a whole.
SELECT q.name, coalesce(q.cluster_workers, q.declared_cluster_workers), h.id::text
  FROM pgworkers.queue q
  JOIN pgworkers.host h ON q.name = ANY (h.queues) AND h.renewed_at > least(now(), %(clock)s::timestamptz) - h.lease
                       AND h.state IN ('starting', 'running')
 WHERE q.cluster_workers IS NOT NULL OR (q.workers IS NULL AND q.declared_cluster_workers IS NOT NULL)
 ORDER BY q.name, h.id
