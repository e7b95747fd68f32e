-- Rows of hosts that have been gone for ten leases and own nothing any more. Guard: no running job (index job_running).
DELETE FROM pgworkers.host h
 WHERE h.renewed_at < now() - 10 * h.lease
   AND NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.host = h.id)
RETURNING h.id
