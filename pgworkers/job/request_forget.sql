-- Old requests. Bounded; skips what others have locked.
WITH old AS MATERIALIZED (
    SELECT r.id FROM pgworkers.request r WHERE r.asked_at < now() - interval '1 hour'
     ORDER BY r.id LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED
)
DELETE FROM pgworkers.request r USING old o WHERE r.id = o.id RETURNING r.id
