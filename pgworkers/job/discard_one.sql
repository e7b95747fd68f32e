-- Discard a job that does not run. The SQL function takes the row lock, so a claim or finish that committed first wins.
SELECT pgworkers.discard(%(id)s::bigint, %(reason)s::text, %(os_user)s::text)
