-- Remove a schedule with all of its scopes, or one scope. Its jobs and ticks stay. Index: the primary key. Guard: a firing
-- that was planned before finds no row.
DELETE FROM pgworkers.schedule s
 WHERE s.name = %(name)s::text AND (%(scope)s::text IS NULL OR s.scope = %(scope)s::text)
RETURNING s.name, s.scope
