-- Link jobs that were enqueued with `after` to their parents, and settle a portion of the followers of parents that have ended:
-- pgworkers.link_dependencies() in schema/0001_initial.sql. Indexes: dependency_new, the primary keys. Guard: the row locks.
SELECT pgworkers.link_dependencies(%(limit)s::integer)
