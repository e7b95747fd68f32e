-- Throttle a queue. The SQL function computes for how long, skips a locked row, and waits for no lock longer than 30 ms. A trigger notifies the
-- hosts. Index: the primary key.
SELECT pgworkers.throttle_queue(%(name)s::text, %(after)s::double precision, %(base)s::double precision,
                          %(growth)s::double precision, %(max_seconds)s::double precision, %(grace)s::double precision)
