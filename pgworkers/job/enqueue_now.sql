-- One new job that is ready now and has nothing special about it, of a task whose defaults the caller knows. The SQL function knows
-- whom to notify: whoever sleeps, and in a longer transaction everybody, because who will sleep when it ends cannot be known.
SELECT pgworkers.enqueue_now(
       %(task)s::text, %(args)s::jsonb, %(queue)s::text, %(priority)s::integer, %(max_attempts)s::integer,
       %(max_crashes)s::integer, %(alone)s::boolean)
