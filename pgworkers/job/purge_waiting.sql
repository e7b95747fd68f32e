-- Cancel those of these jobs that do not run, in one transaction, locked in the order of their ids. Index: the primary keys.
SELECT c.id, c.answer FROM pgworkers.call_off(%(ids)s::bigint[], 'cancelled', 'purged by an operator') c
