-- One scope less; the SQL function that triggers use too.
SELECT pgworkers.remove_scope(%(name)s::text, %(scope)s::text)
