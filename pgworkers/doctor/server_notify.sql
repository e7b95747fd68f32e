-- Notifies a channel that only the doctor listens to, unless the server's queue of notifications is nearly full, and returns
-- how full it is (0 to 1). A database without our schema has no function for it.
SELECT CASE WHEN pg_notification_queue_usage() < %(full)s::double precision THEN pg_notify(%(channel)s::text, %(word)s::text) END,
       pg_notification_queue_usage()
