-- Count a slice of the scheduled jobs by queue, from the place where the last slice ended; each row has the place of the last one. Index:
-- job_scheduled. No guard: it only reads.
WITH later AS MATERIALIZED (
    SELECT j.queue, j.run_at, j.id
      FROM pgworkers.job j
     WHERE j.state = 'scheduled' AND (j.run_at, j.id) > (%(run_at)s::timestamptz, %(id)s::bigint)
     ORDER BY j.run_at, j.id
     LIMIT %(slice)s::bigint
),
latest AS MATERIALIZED (
    SELECT l.run_at, l.id FROM later l ORDER BY l.run_at DESC, l.id DESC LIMIT 1
)
SELECT counted.queue, counted.jobs, latest.run_at::text, latest.id
  FROM (SELECT l.queue, count(*) AS jobs FROM later l GROUP BY l.queue) counted
 CROSS JOIN latest
