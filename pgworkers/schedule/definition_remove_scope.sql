-- Remove a scope, by the SQL function that triggers call, too.
SELECT pgworkers.remove_scope(%(name)s::text, %(scope)s::text)
