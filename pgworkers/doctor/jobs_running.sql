-- What runs, the longest first: where, in which process, for how long, how far past its limits, and what its task usually
-- takes. Times are as of its host's last renewal, carried on to now. Index: job_running. No guard: it only reads.
WITH usual AS MATERIALIZED (
    SELECT s.task, sum(s.seconds) / greatest(sum(s.count), 1) AS mean
      FROM pgworkers.minute_statistics s
     WHERE s.minute > now() - interval '6 hours' AND s.verdict = 'succeeded'
     GROUP BY s.task
),
seen AS MATERIALIZED (
    SELECT h.id AS host, h.name, (w ->> 'job_id')::bigint AS job_id, (w ->> 'queue') || '/' || (w ->> 'slot') AS worker,
           (w ->> 'pid')::integer AS pid, w ->> 'state' AS state,
           w ->> 'state' = 'stalled' OR coalesce((w ->> 'stalled')::boolean, false) AS stalled,
           (w ->> 'since')::double precision + extract(epoch FROM now() - h.renewed_at)::double precision AS since,
           extract(epoch FROM now() - h.renewed_at)::double precision - (w ->> 'seconds_left')::double precision AS over
      FROM pgworkers.host h
     CROSS JOIN LATERAL jsonb_array_elements(h.workers) w
     WHERE h.renewed_at >= now() - h.lease AND (w ->> 'job_id') IS NOT NULL
)
SELECT j.id, j.queue, j.task, s.name AS host, s.worker, s.pid, s.state, s.stalled AS is_stalled, s.since AS running_seconds,
       u.mean::double precision AS usual_seconds,
       greatest(extract(epoch FROM now() - CASE WHEN isfinite(j.deadline_at) THEN j.deadline_at END), s.since - extract(epoch FROM j.timeout), s.over)::double precision
           AS overdue_seconds,
       extract(epoch FROM now() - j.cancel_at)::double precision AS seconds_since_cancel
  FROM pgworkers.job j
  JOIN seen s ON s.host = j.host AND s.job_id = j.id
  LEFT JOIN usual u ON u.task = j.task
 WHERE j.host IS NOT NULL
 ORDER BY s.since DESC
 LIMIT 1000
