-- Delete some old batches. Index: batch_finished, then the primary key. Guard: finished.
WITH old AS MATERIALIZED (
    SELECT o.id
      FROM pgworkers.batch o
     WHERE o.finished_at < now() - make_interval(secs => %(older)s::double precision)
     ORDER BY o.finished_at
     LIMIT %(limit)s::bigint
       FOR UPDATE SKIP LOCKED
)
DELETE FROM pgworkers.batch b WHERE b.id = ANY (ARRAY(SELECT o.id FROM old o)) AND b.finished_at IS NOT NULL RETURNING b.id
