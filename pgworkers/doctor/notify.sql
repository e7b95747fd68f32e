-- A word on a channel that only the doctor listens to, and how full the server's queue of notifications is (0 to 1).
SELECT pg_notify(%(channel)s::text, %(word)s::text), pg_notification_queue_usage()
