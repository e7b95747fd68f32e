-- Delete the row of a host that leaves cleanly. Index: the primary key.
DELETE FROM pgworkers.host WHERE id = %(host)s::uuid RETURNING id
