-- Acknowledge the workers that this host was granted of each queue, and read the grants. `held` workers still live here, so they count until
-- the next call, however few are granted. Row by row under the lock: a grant that is lowered at the same time is either seen here, or has seen
-- what is acknowledged here. A host that is leaving gives its grant back. Index: the primary key.
UPDATE pgworkers.cluster_slots s
   SET granted = CASE WHEN %(leaving)s::boolean THEN 0 ELSE s.granted END, acknowledged_at = now(),
       acknowledged = greatest(CASE WHEN %(leaving)s::boolean THEN 0 ELSE s.granted END, t.held)
  FROM unnest(%(queues)s::text[], %(held)s::integer[]) AS t (queue, held)
 WHERE s.queue = t.queue AND s.host = %(host)s::uuid
RETURNING s.queue, s.granted
