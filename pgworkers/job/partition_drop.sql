-- Drop one daily partition. The SQL function refuses any other name, and waits for its locks only briefly.
SELECT pgworkers.drop_partition(%(name)s::text)
