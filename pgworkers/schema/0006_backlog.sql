-- serves: 0006
-- For autoscalers. KEDA asks `SELECT pgworkers.backlog('reports')` and divides by what one host works on at once.

-- How much there is to do in a queue, or in all of them: jobs that are ready or running. A
-- paused or cooling queue needs no more hosts than what runs in it. Counted up to `most`: the answer costs the same however
-- long the queue is.
CREATE FUNCTION pgworkers.backlog(queue text DEFAULT NULL, most integer DEFAULT 10000) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH asked AS MATERIALIZED (
    SELECT q.name, q.paused OR coalesce(q.throttled_until > now(), false) AS still
      FROM pgworkers.queue q
     WHERE backlog.queue IS NULL OR q.name = backlog.queue
    UNION ALL
    SELECT backlog.queue, false
     WHERE backlog.queue IS NOT NULL AND NOT EXISTS (SELECT FROM pgworkers.queue q WHERE q.name = backlog.queue)
)
SELECT least(backlog.most, coalesce(sum(free.jobs + held.jobs), 0) + (
           SELECT count(*) FROM (SELECT FROM pgworkers.job j
                                  WHERE j.host IS NOT NULL AND (backlog.queue IS NULL OR j.queue = backlog.queue)
                                  LIMIT backlog.most) r))::bigint
  FROM asked a
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs
         FROM (SELECT FROM pgworkers.job j
                WHERE j.queue = a.name AND NOT a.still AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
                ORDER BY j.priority DESC, j.id
                LIMIT backlog.most) f) free
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs
         FROM (SELECT FROM pgworkers.job j
                WHERE j.queue = a.name AND NOT a.still AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL)
                ORDER BY j.task
                LIMIT backlog.most) h) held
$$;
