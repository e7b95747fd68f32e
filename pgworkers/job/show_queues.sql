-- Every queue that is declared, or has live or dead jobs, with its counts. A host claims a few jobs ahead: those beyond its
-- workers of the queue wait in its buffer, and count as ready. Index: history_state for the dead, job_running for the claimed.
WITH live AS (
    SELECT queue, count(*) FILTER (WHERE state = 'ready') AS ready, count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
           min(run_at) FILTER (WHERE state = 'ready' AND isfinite(run_at)) AS oldest
      FROM pgworkers.job
     GROUP BY queue
),
claimed AS (
    SELECT c.queue, sum(c.jobs) AS jobs, sum(least(c.jobs, coalesce(nullif((
               SELECT count(*) FROM pgworkers.worker w WHERE w.host = c.host AND w.queue = c.queue), 0), c.jobs))) AS begun
      FROM (SELECT j.queue, j.host, count(*) AS jobs FROM pgworkers.job j WHERE j.state = 'running' GROUP BY j.queue, j.host) c
     GROUP BY c.queue
),
served AS (
    SELECT queue, count(*) AS hosts, sum(workers) AS workers
      FROM (SELECT n.queue, (SELECT count(*) FROM jsonb_array_elements(h.workers) w
                              WHERE w->>'queue' = n.queue AND w->>'state' <> 'leaving') AS workers
              FROM pgworkers.host h CROSS JOIN unnest(h.queues) AS n (queue)
             WHERE h.renewed_at >= now() - h.lease AND h.state IN ('starting', 'running')) living
     GROUP BY queue
),
dead AS (
    SELECT queue, count(*) AS dead FROM pgworkers.history WHERE state = 'dead' GROUP BY queue
)
SELECT coalesce(q.name, l.queue, d.queue), coalesce(q.paused, false), (coalesce(l.ready, 0) + coalesce(c.jobs - c.begun, 0))::bigint,
       coalesce(l.scheduled, 0), coalesce(c.begun, 0)::bigint, coalesce(d.dead, 0),
       CASE WHEN l.oldest IS NOT NULL THEN greatest(extract(epoch FROM now() - l.oldest), 0) END::double precision,
       q.workers, q.cluster_workers, q.declared_cluster, coalesce(s.workers, 0)::integer, coalesce(s.hosts, 0),
       CASE WHEN q.throttled_until > now() THEN extract(epoch FROM q.throttled_until - now()) END::double precision,
       extract(epoch FROM coalesce(q.retention, q.declared_retention))::double precision
  FROM pgworkers.queue q
  FULL JOIN live l ON l.queue = q.name
  FULL JOIN dead d ON d.queue = coalesce(q.name, l.queue)
  LEFT JOIN claimed c ON c.queue = coalesce(q.name, l.queue, d.queue)
  LEFT JOIN served s ON s.queue = coalesce(q.name, l.queue, d.queue)
 ORDER BY 1
