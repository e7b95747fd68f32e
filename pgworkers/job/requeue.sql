-- Run these jobs (again). The SQL function locks rows in id order, records the operation, and returns the outcome of each id.
SELECT r.id, r.outcome FROM pgworkers.requeue(%(ids)s::bigint[], %(reason)s::text, %(os_user)s::text) r
