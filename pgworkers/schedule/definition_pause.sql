-- Pause or resume a schedule, all of its scopes or one. Ticks during the pause are skipped. Index: the primary key. Guard: the revision is
-- raised, so that a firing that was planned before does nothing.
UPDATE pgworkers.schedule s
   SET paused = %(paused)s::boolean, revision = s.revision + 1,
       planned_until = CASE WHEN s.paused AND NOT %(paused)s::boolean THEN now() ELSE s.planned_until END,
       next_at = NULL,
       due_at = CASE WHEN (s.scope <> '') = (s.scope_kind <> '') THEN '-infinity' ELSE pgworkers.far_future() END
 WHERE s.name = %(name)s::text AND (%(scope)s::text IS NULL OR s.scope = %(scope)s::text)
   AND s.paused <> %(paused)s::boolean
RETURNING s.name, s.scope
