-- Let a queue cool down; the function says for how long. The hosts are told by a trigger.
SELECT pgworkers.throttle_queue(%(name)s::text, %(after)s::double precision, %(base)s::double precision,
                          %(growth)s::double precision, %(most)s::double precision, %(grace)s::double precision)
