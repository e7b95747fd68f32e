-- Delete some idempotency keys whose window is over. Index: idempotency_key_expires. Skips rows that others have locked.
DELETE FROM pgworkers.idempotency_key k
 WHERE k.ctid = ANY (ARRAY(SELECT e.ctid
                             FROM pgworkers.idempotency_key e
                            WHERE e.expires_at <= now()
                            ORDER BY e.expires_at
                            LIMIT %(limit)s::bigint
                              FOR UPDATE SKIP LOCKED))
RETURNING k.job_id
