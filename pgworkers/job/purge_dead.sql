-- Delete dead jobs for good, with their attempts. The SQL function takes the row locks and records the operation.
SELECT pgworkers.purge_dead(%(ids)s::bigint[], %(reason)s::text, %(os_user)s::text)
