-- Set how long ended jobs of a queue are kept. NULL: as the app or the setting declares. Index: the primary key.
UPDATE pgworkers.queue q
   SET retention = make_interval(secs => %(seconds)s::double precision), updated_at = now()
 WHERE q.name = %(name)s::text
RETURNING q.name
