-- Take the requests that wait for this host, each once. Index: request_open. Guard: taken_at IS NULL under the row lock.
UPDATE pgworkers.request r
   SET taken_at = now()
 WHERE r.host = %(host)s::uuid AND r.taken_at IS NULL
RETURNING r.id, r.kind, r.job_id, r.queue, r.slot
