-- Reset the throttle level of a queue after a success. Guard, under the row lock: the last cool-down ended at least the quiet period ago. A row
-- that another session has locked is left as it is, because this runs on the session that claims; the next success resets it. Index: the
-- primary key.
UPDATE pgworkers.queue q
   SET throttle_level = 0, updated_at = now()
 WHERE q.name = (SELECT l.name
                   FROM pgworkers.queue l
                  WHERE l.name = %(name)s::text AND l.throttle_level > 0
                    AND l.throttled_until < now() - make_interval(secs => %(grace)s::double precision)
                    FOR UPDATE SKIP LOCKED)
RETURNING q.name
