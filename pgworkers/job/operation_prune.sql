-- Old operations are forgotten, some at a time. Index: operation_at.
DELETE FROM pgworkers.operation o
 WHERE o.id IN (SELECT p.id
                  FROM pgworkers.operation p
                 WHERE p.at < now() - (SELECT greatest(make_interval(secs => %(older)s::double precision),
                                                       max(coalesce(q.retention, q.declared_retention)))
                                         FROM pgworkers.queue q)
                 ORDER BY p.at
                 LIMIT %(limit)s::bigint
                   FOR UPDATE SKIP LOCKED)
RETURNING o.id
