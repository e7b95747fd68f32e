-- Cancel those of these jobs that do not run, in one transaction, locked in the order of their ids. Index: the primary keys.
SELECT c.id, c.answer FROM pgworkers.call_off(%(ids)s::bigint[], 'cancelled', waiting => true, reason => %(reason)s::text,
                                              os_user => %(os_user)s::text) c
