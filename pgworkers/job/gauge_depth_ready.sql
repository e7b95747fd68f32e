-- Count a slice of the ready jobs of one queue, from the place where the last slice ended: how many, how long the oldest has waited, and the
-- place of the last one. Index: job_ready, of which the second part is read only if the first has not found enough. No guard: it only reads.
SELECT count(*), greatest(extract(epoch FROM now() - min(f.run_at) FILTER (WHERE isfinite(f.run_at))), 0)::double precision, max(ARRAY[-f.priority::bigint, f.id])
  FROM ((SELECT j.priority, j.id, j.run_at FROM pgworkers.job j
          WHERE j.queue = %(queue)s::text AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
            AND j.priority BETWEEN %(priority)s::bigint AND %(priority)s::bigint AND j.id > %(id)s::bigint
          ORDER BY j.priority DESC, j.id
          LIMIT %(slice)s::bigint)
        UNION ALL
        (SELECT j.priority, j.id, j.run_at FROM pgworkers.job j
          WHERE j.queue = %(queue)s::text AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
            AND j.priority < %(priority)s::bigint
          ORDER BY j.priority DESC, j.id
          LIMIT %(slice)s::bigint)
        LIMIT %(slice)s::bigint) f
