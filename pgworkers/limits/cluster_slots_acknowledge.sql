-- Acknowledge what this host was granted of each queue, and learn it: `held` workers of it still live here, so as many count
-- until the next time, however few are granted. Row by row under the lock: a grant that is lowered meanwhile is either seen
-- here, or has seen what is taken here. A host that is leaving gives its grant back. Index: the primary key.
UPDATE pgworkers.slots s
   SET workers = CASE WHEN %(leaving)s::boolean THEN 0 ELSE s.workers END, taken_at = now(),
       taken = greatest(CASE WHEN %(leaving)s::boolean THEN 0 ELSE s.workers END, t.held)
  FROM unnest(%(queues)s::text[], %(held)s::integer[]) AS t (queue, held)
 WHERE s.queue = t.queue AND s.host = %(host)s::uuid
RETURNING s.queue, s.workers
