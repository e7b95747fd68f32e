-- So many more ready jobs of one queue, behind the place where the last slice ended. Index only (job_ready), where a vacuum has
-- been: the table's pages are not read for it, and do not push out of memory what others need. No guard: it only reads.
SELECT count(*), max(ARRAY[-f.priority::bigint, f.id])
  FROM ((SELECT j.priority, j.id FROM pgworkers.job j
          WHERE j.queue = %(queue)s::text AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
            AND j.priority BETWEEN %(priority)s::bigint AND %(priority)s::bigint AND j.id > %(id)s::bigint
          ORDER BY j.priority DESC, j.id
          LIMIT %(slice)s::bigint)
        UNION ALL
        (SELECT j.priority, j.id FROM pgworkers.job j
          WHERE j.queue = %(queue)s::text AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
            AND j.priority < %(priority)s::bigint
          ORDER BY j.priority DESC, j.id
          LIMIT %(slice)s::bigint)
        LIMIT %(slice)s::bigint) f
