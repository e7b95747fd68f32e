-- Queues that are paused or that an operator gave no workers, and since when. No guard: it only reads.
SELECT q.name AS queue, q.paused AS is_paused, extract(epoch FROM now() - q.updated_at)::double precision AS seconds
  FROM pgworkers.queue q
 WHERE q.paused OR q.workers = 0 OR q.cluster_workers = 0
 ORDER BY q.name
