-- Queues whose workers cannot start, on hosts that are alive, as of their last renewal. Index: none, a few rows.
SELECT h.name AS host, h.pid, p.queue, p.error, p.traceback
  FROM pgworkers.host h, jsonb_to_recordset(h.problems) AS p (queue text, error text, traceback text)
 WHERE h.renewed_at >= now() - h.lease
 ORDER BY h.name, h.pid, p.queue
