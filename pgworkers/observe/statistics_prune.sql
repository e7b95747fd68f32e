-- Old minutes are deleted, some at a time. Index: the primary key, which begins with the minute.
DELETE FROM pgworkers.stat t
 WHERE (t.minute, t.queue, t.task, t.verdict) IN (
       SELECT o.minute, o.queue, o.task, o.verdict
         FROM pgworkers.stat o
        WHERE o.minute < now() - make_interval(secs => %(older)s::double precision)
        ORDER BY o.minute
        LIMIT %(limit)s::bigint)
RETURNING 1
