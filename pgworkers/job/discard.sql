-- Discard these jobs, in one transaction, locked in the order of their ids. Index: the primary keys.
SELECT d.id, d.answer FROM pgworkers.discard_many(%(ids)s::bigint[], %(reason)s::text, %(os_user)s::text) d
