-- Fragment: the rows that a claim takes, as an array of ctids. Without limits these are all rows of the CTE `unlimited`. If a task is limited, or a
-- job waits behind a limit, pgworkers.choose_claimed_jobs() decides between both kinds. Two small indexes and one probe per queue show which. A scalar subquery, not
-- a CTE: choose_claimed_jobs() is volatile, so a CTE would be materialised, and each node of a plan costs some microseconds (docs/adr/24).
SELECT CASE WHEN EXISTS (SELECT FROM pgworkers.task t WHERE t.concurrency IS NOT NULL)
              OR EXISTS (SELECT FROM pgworkers.concurrency c WHERE c.kind = 'task')
              OR (%(include_limited)s::boolean AND EXISTS (
                     SELECT FROM unnest(%(queues)s::text[]) AS w (queue)
                      CROSS JOIN LATERAL (
                            SELECT FROM pgworkers.job j
                             WHERE j.queue = w.queue AND j.state = 'ready' AND coalesce(j.behind_limit OR j.concurrency_key IS NOT NULL, false)
                             ORDER BY j.task DESC
                             LIMIT 1) waits))
            THEN pgworkers.choose_claimed_jobs(ARRAY(SELECT at FROM unlimited), %(queues)s::text[], %(counts)s::integer[],
                                  %(tasks)s::text[], %(include_limited)s::boolean, %(max_groups)s::integer)
            ELSE ARRAY(SELECT at FROM unlimited) END
