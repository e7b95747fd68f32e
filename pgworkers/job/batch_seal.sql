-- All jobs of a batch are in, in the same transaction: from its commit on it may complete. Index: the primary key.
-- On users' connections, too: every name says where it is from.
UPDATE pgworkers.batch b
   SET total = %(total)s::pg_catalog.int8, then_id = %(then_id)s::pg_catalog.int8
 WHERE b.id OPERATOR(pg_catalog.=) %(id)s::pg_catalog.int8
RETURNING b.id
