-- Delete some old operations. Index: operation_at, then the primary key.
WITH old AS MATERIALIZED (
    SELECT p.id
      FROM pgworkers.operation p
     WHERE p.at < now() - (SELECT greatest(make_interval(secs => %(older)s::double precision),
                                           max(coalesce(q.retention, q.declared_retention)))
                             FROM pgworkers.queue q)
     ORDER BY p.at
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
)
DELETE FROM pgworkers.operation o WHERE o.id = ANY (ARRAY(SELECT p.id FROM old p)) RETURNING o.id
