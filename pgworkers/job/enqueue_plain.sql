-- Enqueue one job that is ready now and has no options, of a task whose defaults the caller knows. The SQL function chooses which host to
-- notify: an idle one, or in a longer transaction all, because which hosts are idle at its end is unknown.
SELECT pgworkers.enqueue_plain(
       %(task)s::pg_catalog.text, %(args)s::pg_catalog.jsonb, %(queue)s::pg_catalog.text, %(priority)s::pg_catalog.int4,
       %(max_attempts)s::pg_catalog.int4, %(max_crashes)s::pg_catalog.int4, %(alone)s::pg_catalog.bool)
