-- Rows of hosts that have been gone for ten leases and own nothing any more; `clock` is the time as the asking host reckons it. Guard: no running job (index job_running). OFFSET keeps
-- that look a look for each host: as a join it could begin with all that ever ran (docs/adr/2501).
DELETE FROM pgworkers.host h
 WHERE h.renewed_at < least(now(), %(clock)s::timestamptz) - 10 * h.lease
   AND NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.host = h.id OFFSET 0)
RETURNING h.id
