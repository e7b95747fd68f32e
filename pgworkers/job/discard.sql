-- Give up these jobs, in one transaction, locked in the order of their ids. Index: the primary keys.
SELECT c.id, c.answer FROM pgworkers.call_off(%(ids)s::bigint[], 'discarded', true,
                                                 %(reason)s::text, %(os_user)s::text) c
