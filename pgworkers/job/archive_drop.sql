-- Drop one daily partition, all but its dead jobs that are kept longer. The SQL function refuses anything else.
SELECT pgworkers.drop_partition(%(name)s::text, make_interval(secs => %(dead)s::double precision))
