-- Write the answer to a request, once. Index: the primary key. Guard: not answered before.
WITH answered AS (
    UPDATE pgworkers.request r
       SET answered_at = now(), done = %(done)s::boolean, answer = %(answer)s::text
     WHERE r.id = %(id)s::bigint AND r.answered_at IS NULL
    RETURNING r.id
)
SELECT id, pgworkers.notify('request:' || id, 'pgworkers_done') FROM answered
