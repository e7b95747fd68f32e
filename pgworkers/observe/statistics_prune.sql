-- Old minutes are deleted, some at a time. Index: the primary key, which begins with the minute.
WITH old AS MATERIALIZED (
    SELECT o.ctid AS at
      FROM pgworkers.minute_statistics o
     WHERE o.minute < now() - make_interval(secs => %(older)s::double precision)
     ORDER BY o.minute
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
)
DELETE FROM pgworkers.minute_statistics t
 WHERE t.ctid = ANY (ARRAY(SELECT o.at FROM old o)) AND t.minute < now() - make_interval(secs => %(older)s::double precision)
RETURNING 1
