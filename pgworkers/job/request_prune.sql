-- Delete some old requests; skips rows that others have locked. Index: request_asked, then the primary key.
WITH old AS MATERIALIZED (
    SELECT r.id FROM pgworkers.request r WHERE r.asked_at < now() - interval '1 hour'
     ORDER BY r.asked_at LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED
)
DELETE FROM pgworkers.request r WHERE r.id = ANY (ARRAY(SELECT o.id FROM old o)) RETURNING r.id
