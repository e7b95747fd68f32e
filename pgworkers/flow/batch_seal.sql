-- All jobs of a batch are in, in the same transaction: from its commit on it may complete. Index: the primary key.
UPDATE pgworkers.batch b
   SET total = %(total)s::bigint, then_id = %(then_id)s::bigint
 WHERE b.id = %(id)s::bigint
RETURNING b.id
