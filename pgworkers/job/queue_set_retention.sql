-- How long finished jobs of a queue are kept, or NULL: as the app or the setting says. Index: the primary key.
UPDATE pgworkers.queue q
   SET retention = make_interval(secs => %(seconds)s::double precision), updated_at = now()
 WHERE q.name = %(name)s::text
RETURNING q.name
