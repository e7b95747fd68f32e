-- Set the deadline of a live job. The SQL function takes the row lock, so a finish that committed first wins. Index: the primary key.
SELECT pgworkers.set_deadline(%(id)s::bigint, make_interval(secs => %(seconds)s::double precision), %(os_user)s::text)
