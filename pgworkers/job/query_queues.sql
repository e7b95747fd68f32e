-- Every queue that is declared, or has live or dead jobs, with its counts. A host claims a few jobs ahead: those beyond its workers of
-- the queue wait in its buffer, and count as ready. No count goes beyond `max_count` in a queue, nor beyond `max_count` over all queues for what
-- is scheduled, claimed or dead; `capped` names the counts that stop there. The oldest ready job is sought among what is counted.
-- A range of hosts: see query_search.sql. Undeclared queues are found by a loose scan, up to 1000. Indexes: job_ready, job_ready_limited, job_scheduled, job_running, history_state.
WITH RECURSIVE free_names AS (
    (SELECT j.queue::text AS queue, 1 AS seen FROM pgworkers.job j
      WHERE j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
      ORDER BY j.queue LIMIT 1)
    UNION ALL
    SELECT n.queue, f.seen + 1
      FROM free_names f
     CROSS JOIN LATERAL (
           SELECT j.queue::text AS queue FROM pgworkers.job j
            WHERE j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL AND j.queue > f.queue
            ORDER BY j.queue LIMIT 1) n
     WHERE f.seen < 1000
),
lane_names AS (
    (SELECT j.queue::text AS queue, 1 AS seen FROM pgworkers.job j
      WHERE j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
      ORDER BY j.queue LIMIT 1)
    UNION ALL
    SELECT n.queue, l.seen + 1
      FROM lane_names l
     CROSS JOIN LATERAL (
           SELECT j.queue::text AS queue FROM pgworkers.job j
            WHERE j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL) AND j.queue > l.queue
            ORDER BY j.queue LIMIT 1) n
     WHERE l.seen < 1000
),
scheduled_jobs AS MATERIALIZED (
    SELECT j.queue::text AS queue FROM pgworkers.job j WHERE j.state = 'scheduled' ORDER BY j.run_at, j.id LIMIT %(max_count)s::bigint + 1
),
claimed_jobs AS MATERIALIZED (
    SELECT j.queue::text AS queue, j.host FROM pgworkers.job j
     WHERE j.host BETWEEN '00000000-0000-0000-0000-000000000000' AND 'ffffffff-ffff-ffff-ffff-ffffffffffff'
     ORDER BY j.host, j.claimed_at LIMIT %(max_count)s::bigint + 1
),
dead_jobs AS MATERIALIZED (
    SELECT h.queue FROM pgworkers.history h WHERE h.state = 'dead' ORDER BY h.id DESC LIMIT %(max_count)s::bigint + 1
),
reported AS MATERIALIZED (
    SELECT w.host, w.queue, count(*) AS workers FROM pgworkers.worker w GROUP BY w.host, w.queue
),
names AS MATERIALIZED (
    SELECT name FROM pgworkers.queue
    UNION SELECT queue FROM free_names
    UNION SELECT queue FROM lane_names
    UNION SELECT queue FROM scheduled_jobs
    UNION SELECT queue FROM claimed_jobs
    UNION SELECT queue FROM dead_jobs
),
scheduled AS MATERIALIZED (
    SELECT queue, count(*) AS jobs FROM scheduled_jobs GROUP BY queue
),
dead AS MATERIALIZED (
    SELECT queue, count(*) AS jobs FROM dead_jobs GROUP BY queue
),
claimed AS MATERIALIZED (
    SELECT c.queue, sum(c.jobs) AS jobs, sum(least(c.jobs, r.workers)) AS begun
      FROM (SELECT queue, host, count(*) AS jobs FROM claimed_jobs GROUP BY queue, host) c
      LEFT JOIN reported r ON r.host = c.host AND r.queue = c.queue
     GROUP BY c.queue
),
served AS MATERIALIZED (
    SELECT queue, count(*) AS hosts, sum(workers) AS workers
      FROM (SELECT n.queue, (SELECT count(*) FROM jsonb_array_elements(h.workers) w
                              WHERE w->>'queue' = n.queue AND w->>'state' <> 'leaving') AS workers
              FROM pgworkers.host h CROSS JOIN unnest(h.queues) AS n (queue)
             WHERE h.renewed_at >= now() - h.lease AND h.state IN ('starting', 'running')) living
     GROUP BY queue
)
SELECT n.name, coalesce(q.paused, false),
       (least(free.jobs + lanes.jobs, %(max_count)s::bigint) + coalesce(c.jobs - c.begun, 0))::bigint,
       least(coalesce(s.jobs, 0), %(max_count)s::bigint), least(coalesce(c.begun, 0), %(max_count)s::bigint)::bigint,
       least(coalesce(d.jobs, 0), %(max_count)s::bigint),
       CASE WHEN least(free.oldest, lanes.oldest) IS NOT NULL
            THEN greatest(extract(epoch FROM now() - least(free.oldest, lanes.oldest)), 0) END::double precision,
       q.workers, q.cluster_workers, q.declared_cluster_workers, coalesce(served.workers, 0)::integer, coalesce(served.hosts, 0),
       CASE WHEN q.throttled_until > now() THEN extract(epoch FROM q.throttled_until - now()) END::double precision,
       extract(epoch FROM coalesce(q.retention, q.declared_retention))::double precision,
       array_remove(ARRAY[CASE WHEN free.jobs + lanes.jobs > %(max_count)s::bigint THEN 'ready' END,
                          CASE WHEN (SELECT count(*) FROM scheduled_jobs) > %(max_count)s::bigint THEN 'scheduled' END,
                          CASE WHEN (SELECT count(*) FROM claimed_jobs) > %(max_count)s::bigint THEN 'running' END,
                          CASE WHEN (SELECT count(*) FROM dead_jobs) > %(max_count)s::bigint THEN 'dead' END], NULL)
  FROM names n
  LEFT JOIN pgworkers.queue q ON q.name = n.name
  LEFT JOIN scheduled s ON s.queue = n.name
  LEFT JOIN claimed c ON c.queue = n.name
  LEFT JOIN dead d ON d.queue = n.name
  LEFT JOIN served ON served.queue = n.name
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs, min(f.run_at) FILTER (WHERE isfinite(f.run_at)) AS oldest
         FROM (SELECT j.run_at FROM pgworkers.job j
                WHERE j.queue = n.name AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                ORDER BY j.priority DESC, j.id
                LIMIT %(max_count)s::bigint + 1) f) free
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs, min(f.run_at) FILTER (WHERE isfinite(f.run_at)) AS oldest
         FROM (SELECT j.run_at FROM pgworkers.job j
                WHERE j.queue = n.name AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
                ORDER BY j.task, pgworkers.concurrency_group(j.concurrency_key), j.priority DESC, j.id
                LIMIT %(max_count)s::bigint + 1) f) lanes
 ORDER BY n.name
