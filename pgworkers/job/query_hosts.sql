-- Every host that has a row; `stale` when it has not renewed for its lease. What it claimed ahead, beyond its workers, does not
-- run. Index: job_running for what each one has.
SELECT h.id, h.name, h.pid, h.label, h.app, h.version, h.state, h.leader, h.queues, h.started_at, h.renewed_at,
       extract(epoch FROM h.lease)::double precision, h.renewed_at < now() - h.lease, jsonb_array_length(h.workers),
       least((SELECT count(*) FROM pgworkers.job j WHERE j.host = h.id), nullif(jsonb_array_length(h.workers), 0)),
       h.metrics
  FROM pgworkers.host h
 ORDER BY h.started_at, h.id
