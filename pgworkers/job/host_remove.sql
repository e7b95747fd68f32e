-- A host that leaves cleanly takes its row along. Index: the primary key.
DELETE FROM pgworkers.host WHERE id = %(host)s::uuid RETURNING id
