-- Throttle a queue. The SQL function computes for how long. A trigger notifies the hosts.
SELECT pgworkers.throttle_queue(%(name)s::text, %(after)s::double precision, %(base)s::double precision,
                          %(growth)s::double precision, %(max_seconds)s::double precision, %(grace)s::double precision)
