-- A word on a channel that only the doctor listens to, if there is room for it, and how full the server's queue of
-- notifications is (0 to 1). As pgworkers.notify(), which an empty database does not have.
SELECT CASE WHEN pg_notification_queue_usage() < 0.9 THEN pg_notify(%(channel)s::text, %(word)s::text) END,
       pg_notification_queue_usage()
