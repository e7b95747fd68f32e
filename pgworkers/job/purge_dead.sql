-- Forget dead jobs for good, with their post-mortems. The SQL function takes the row locks and leaves a trace.
SELECT pgworkers.purge_dead(%(ids)s::bigint[], %(reason)s::text, %(os_user)s::text)
