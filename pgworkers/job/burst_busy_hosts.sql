-- The other hosts that hold jobs of these queues, how many, and for how long they have been silent. Index: job_running.
SELECT h.id, h.name, h.pid, count(*), extract(epoch FROM now() - h.renewed_at)::double precision,
       extract(epoch FROM h.lease)::double precision
  FROM pgworkers.job j
  JOIN pgworkers.host h ON h.id = j.host
 WHERE j.host IS NOT NULL AND j.host <> %(host)s::uuid AND j.queue = ANY (%(queues)s::text[])
 GROUP BY h.id
 ORDER BY h.started_at, h.id
