-- Idempotency keys whose window is over, some at a time. Index: idempotency_key_expires. Skips what others have locked.
DELETE FROM pgworkers.idempotency_key k
 WHERE k.ctid = ANY (ARRAY(SELECT e.ctid
                             FROM pgworkers.idempotency_key e
                            WHERE e.expires_at <= now()
                            ORDER BY e.expires_at
                            LIMIT %(limit)s::bigint
                              FOR UPDATE SKIP LOCKED))
RETURNING k.job_id
