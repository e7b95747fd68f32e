-- One batch. Index: the primary key.
SELECT b.id, b.total, b.then_id, b.on_failed, b.created_at, b.cancelled_at, b.finished_at
  FROM pgworkers.batch b
 WHERE b.id = %(id)s::bigint
