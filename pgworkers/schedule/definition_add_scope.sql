-- Add a scope to a scoped schedule, by the SQL function that triggers call, too.
SELECT pgworkers.add_scope(%(name)s::text, %(scope)s::text, %(args)s::jsonb)
