-- As claim.sql, in the ranges of priorities and ids that the host names for each queue, one after the other until it has enough: what lies
-- behind the place where it last found work, and a step before that place (master/claim_policy).
-- A step has an end, `last`, and one priority, with an equals sign: only then the scan ends there (before Postgres 18). A range without an end
-- must use BETWEEN: with an equals sign any index on id would do for the order. A step has both conditions. They mean the same, but together
-- they make the planner expect almost no rows from job_ready; by the primary key it would read all jobs between two ids, also those of other
-- queues (docs/adr/05).
-- Index, guard and the rest: claim.sql.
WITH unlimited AS MATERIALIZED (
    SELECT ready.at
      FROM unnest(%(queues)s::text[], %(counts)s::integer[]) WITH ORDINALITY AS w (queue, count, nth)
      LEFT JOIN LATERAL (
           SELECT q.paused OR coalesce(q.throttled_until > now(), false) AS closed
             FROM pgworkers.queue q
            WHERE q.name = w.queue
            LIMIT 1) q ON true
     CROSS JOIN LATERAL (
           SELECT found.at
             FROM unnest(%(queue_numbers)s::integer[], %(low_priorities)s::integer[], %(high_priorities)s::integer[], %(first_ids)s::bigint[],
                         %(last_ids)s::bigint[]) AS r (queue_number, low, high, first, last)
            CROSS JOIN LATERAL (
                  SELECT at
                    FROM (SELECT j.ctid AS at
                            FROM pgworkers.job j
                           WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                             AND j.priority BETWEEN r.low AND r.high AND j.id >= r.first AND r.last = 9223372036854775807
                             AND j.task = ANY (%(tasks)s::text[]) AND (j.expires_at IS NULL OR j.expires_at > now())
                           ORDER BY j.priority DESC, j.id
                           LIMIT w.count
                             FOR UPDATE SKIP LOCKED) behind
                   UNION ALL
                  SELECT at
                    FROM (SELECT j.ctid AS at
                            FROM pgworkers.job j
                           WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                             AND j.priority = r.low AND j.priority BETWEEN r.low AND r.low
                             AND j.id BETWEEN r.first AND r.last AND r.last < 9223372036854775807
                             AND j.task = ANY (%(tasks)s::text[]) AND (j.expires_at IS NULL OR j.expires_at > now())
                           ORDER BY j.id
                           LIMIT w.count
                             FOR UPDATE SKIP LOCKED) step) found
            WHERE r.queue_number = w.nth
            LIMIT w.count) ready
     WHERE q.closed IS NOT TRUE
)
UPDATE pgworkers.job j
   SET state = 'running', host = %(host)s::uuid, lease = j.lease + 1, attempt = j.attempt + 1, claimed_at = now()
 WHERE j.ctid = ANY ((
       /* include: claim_choice.fragment.sql */
       )::tid[])
   AND j.state = 'ready'
RETURNING /* include: claim_returning.fragment.sql */
