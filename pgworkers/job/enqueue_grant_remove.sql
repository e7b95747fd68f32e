-- Remove grants. Index: the primary key.
DELETE FROM pgworkers.enqueue_grant g WHERE g.id = ANY (%(ids)s::integer[]) RETURNING g.id
