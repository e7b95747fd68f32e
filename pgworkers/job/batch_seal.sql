-- Seal a batch: all its jobs were enqueued in this transaction, and from its commit on the batch may complete. Index: the primary key. Also
-- runs on users' connections, so each name is qualified.
UPDATE pgworkers.batch b
   SET total = %(total)s::pg_catalog.int8, then_id = %(then_id)s::pg_catalog.int8
 WHERE b.id OPERATOR(pg_catalog.=) %(id)s::pg_catalog.int8
RETURNING b.id
