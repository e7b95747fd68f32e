-- Reset the throttle level of a queue after a success. Guard: the last cool-down ended at least the quiet period ago.
UPDATE pgworkers.queue q
   SET throttle_level = 0, updated_at = now()
 WHERE q.name = %(name)s::text AND q.throttle_level > 0
   AND q.throttled_until < now() - make_interval(secs => %(grace)s::double precision)
RETURNING q.name
