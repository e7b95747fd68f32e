-- How many of the rows that limits and batches lock are missing. Index: the primary key, read as a whole. No guard: it only reads.
SELECT %(rows)s::integer - count(*) FROM pgworkers.mutex
