-- Old batches are forgotten, some at a time. Index: batch_finished. Guard: finished.
DELETE FROM pgworkers.batch b
 WHERE b.id IN (SELECT o.id
                  FROM pgworkers.batch o
                 WHERE o.finished_at < now() - make_interval(secs => %(older)s::double precision)
                 ORDER BY o.finished_at
                 LIMIT %(limit)s::bigint
                   FOR UPDATE SKIP LOCKED)
RETURNING b.id
