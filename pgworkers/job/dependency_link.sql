-- pgworkers.link_parents() is in schema/0001_initial.sql.
-- Link jobs that were enqueued with `after` to their parents, and settle a portion of the followers of ended ones. Indexes: dependency_new, the primary keys. Guard: the row locks.
SELECT pgworkers.link_parents(%(limit)s::integer)
