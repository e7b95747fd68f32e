-- Daily partitions of history and attempt, from today on.
SELECT pgworkers.make_partitions(%(ahead)s::integer)
