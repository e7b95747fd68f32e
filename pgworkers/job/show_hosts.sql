-- Every host that has a row; `stale` when it has not renewed for its lease. Index: job_running for what each one runs.
SELECT h.id, h.name, h.pid, h.label, h.app, h.version, h.state, h.leader, h.queues, h.started_at, h.renewed_at,
       extract(epoch FROM h.lease)::double precision, h.renewed_at < now() - h.lease, jsonb_array_length(h.workers),
       (SELECT count(*) FROM pgworkers.job j WHERE j.host = h.id)
  FROM pgworkers.host h
 ORDER BY h.started_at, h.id
