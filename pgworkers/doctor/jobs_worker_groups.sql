-- The workers of living hosts by queue, state and task, and the longest time in that state. No guard: it only reads.
SELECT w ->> 'queue' AS queue, w ->> 'state' AS state, w ->> 'task' AS task, count(*) AS count,
       max((w ->> 'since')::double precision + extract(epoch FROM now() - h.renewed_at))::double precision AS longest_seconds
  FROM pgworkers.host h
 CROSS JOIN LATERAL jsonb_array_elements(h.workers) w
 WHERE h.renewed_at >= now() - h.lease
 GROUP BY 1, 2, 3
 ORDER BY 4 DESC
