-- Cancel a job. The SQL function takes the row lock, so a finish that committed first wins.
SELECT pgworkers.cancel(%(id)s::bigint, %(reason)s::text, %(os_user)s::text)
