-- Let a role enqueue a task in a queue; an existing grant takes the new bound. Index: enqueue_grant_once.
INSERT INTO pgworkers.enqueue_grant AS g (role, queue, task, max_waiting, may_replace)
VALUES (%(role)s::text, %(queue)s::text, %(task)s::text, %(max_waiting)s::integer, %(may_replace)s::boolean)
ON CONFLICT ON CONSTRAINT enqueue_grant_once DO UPDATE
   SET max_waiting = excluded.max_waiting, may_replace = excluded.may_replace, granted_at = now(), granted_by = session_user
RETURNING g.id, EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = g.role)
