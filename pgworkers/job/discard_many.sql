-- Give up these jobs, in one transaction, locked in the order of their ids. Index: the primary keys.
SELECT w.id, pgworkers.discard(w.id) FROM (SELECT DISTINCT id FROM unnest(%(ids)s::bigint[]) AS u (id) ORDER BY id) w
