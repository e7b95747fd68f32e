-- Write what the deployed app declares about its tasks. Unchanged rows are not written. In name order, so that hosts that start at the same
-- time cannot deadlock. Running jobs of a task that becomes limited count from now on: limit_running_jobs(). It locks the limits in the order
-- of their rows in `mutex`, as admit_limited_jobs() does, not in the order of the names.
WITH declared AS MATERIALIZED (
    SELECT * FROM unnest(%(names)s::text[], %(queues)s::text[], %(priorities)s::integer[], %(max_attempts)s::integer[],
                         %(max_crashes)s::integer[], %(lost_retries)s::boolean[], %(lost_delays)s::double precision[],
                         %(concurrency)s::integer[], %(per_key)s::integer[], %(timeouts)s::double precision[],
                         %(memories)s::bigint[], %(secrets)s::text[])
                  AS n (name, queue, priority, max_attempts, max_crashes, lost_retry, lost_delay, concurrency, per_key,
                        timeout, memory, secrets)
),
put AS (
    INSERT INTO pgworkers.task AS t (name, queue, priority, max_attempts, max_crashes, lost_retry, lost_delay, concurrency,
                                     concurrency_per_key, timeout, memory, secret)
    SELECT name, queue, priority, max_attempts, max_crashes, lost_retry, lost_delay, concurrency, per_key,
           make_interval(secs => timeout), memory, string_to_array(secrets, ',')
      FROM declared ORDER BY name
    ON CONFLICT (name) DO UPDATE
       SET queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
           max_crashes = excluded.max_crashes, lost_retry = excluded.lost_retry, lost_delay = excluded.lost_delay,
           concurrency = excluded.concurrency,
           concurrency_per_key = excluded.concurrency_per_key, timeout = excluded.timeout, memory = excluded.memory,
           secret = excluded.secret, updated_at = now()
     WHERE (t.queue, t.priority, t.max_attempts, t.max_crashes, t.lost_retry, t.lost_delay, t.concurrency,
            t.concurrency_per_key, t.timeout, t.memory, t.secret)
           IS DISTINCT FROM (excluded.queue, excluded.priority, excluded.max_attempts, excluded.max_crashes,
                             excluded.lost_retry, excluded.lost_delay, excluded.concurrency, excluded.concurrency_per_key,
                             excluded.timeout, excluded.memory, excluded.secret)
    RETURNING t.name, t.concurrency
)
SELECT name, CASE WHEN concurrency IS NOT NULL THEN pgworkers.limit_running_jobs(name) END
  FROM (SELECT name, concurrency FROM put ORDER BY pgworkers.limit_mutex('task', name), name OFFSET 0) p
