-- One more scope of a scoped schedule; the SQL function that triggers use too.
SELECT pgworkers.add_scope(%(name)s::text, %(scope)s::text, %(args)s::jsonb)
