-- Drop one daily partition. The SQL function refuses anything else.
SELECT pgworkers.drop_partition(%(name)s::text)
