-- Let these jobs run (again). The SQL function locks rows in id order, leaves a trace, and answers for each id what became of it.
SELECT r.id, r.outcome FROM pgworkers.requeue(%(ids)s::bigint[], %(reason)s::text, %(os_user)s::text) r
