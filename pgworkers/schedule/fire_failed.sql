-- Record why a schedule cannot fire, and when it is planned again; the others go on. Index: the primary key. Guard: revision.
UPDATE pgworkers.schedule s
   SET error = %(error)s::text, next_at = NULL, revision = s.revision + 1,
       due_at = now() + make_interval(secs => %(retry_in)s::double precision)
 WHERE s.name = %(name)s::text AND s.scope = %(scope)s::text AND s.revision = %(revision)s::bigint
RETURNING s.name
