-- Let a queue cool down: nothing is claimed from it until then. A longer cool-down is never shortened.
WITH changed AS (
    UPDATE pgworkers.queue q
       SET throttled_until = greatest(q.throttled_until, now() + make_interval(secs => %(seconds)s::double precision)),
           throttles = q.throttles + 1, updated_at = now()
     WHERE q.name = %(name)s::text
    RETURNING q.name
)
SELECT name, pg_notify('pgworkers', 'queue:' || name) FROM changed
