-- Cancel these jobs, in one transaction, locked in the order of their ids. Index: the primary keys.
SELECT c.id, c.answer FROM pgworkers.cancel_many(%(ids)s::bigint[], false, %(reason)s::text, %(os_user)s::text) c
