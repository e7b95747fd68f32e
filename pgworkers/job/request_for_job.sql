-- Send a request to the host that runs a job. Index: the primary key. No row: it does not run.
WITH asked AS (
    INSERT INTO pgworkers.request (host, kind, job_id)
    SELECT j.host, %(kind)s::text, j.id
      FROM pgworkers.job j
     WHERE j.id = %(job_id)s::bigint AND j.state = 'running'
    RETURNING id
)
SELECT id, pgworkers.notify('request:') FROM asked
