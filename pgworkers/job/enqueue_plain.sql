-- One new job that is ready now and has nothing special about it, of a task whose defaults the caller knows. The SQL function knows
-- whom to notify: whoever sleeps, and in a longer transaction everybody, because who will sleep when it ends cannot be known.
SELECT pgworkers.enqueue_plain(
       %(task)s::pg_catalog.text, %(args)s::pg_catalog.jsonb, %(queue)s::pg_catalog.text, %(priority)s::pg_catalog.int4,
       %(max_attempts)s::pg_catalog.int4, %(max_crashes)s::pg_catalog.int4, %(alone)s::pg_catalog.bool)
