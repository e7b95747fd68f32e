-- Drop one daily partition. The SQL function refuses anything else, and waits for its locks only shortly.
SELECT pgworkers.drop_partition(%(name)s::text)
