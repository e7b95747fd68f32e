-- All hosts with their workers and what their jobs report; by host name, then queue and slot. With `watch` the hosts are notified that a view
-- is open: they write their view each second for a while. Bounded. Indexes: the primary keys.
WITH notified AS MATERIALIZED (
    SELECT pgworkers.notify('watch:') WHERE %(watch)s::boolean
)
SELECT h.id::text, h.name, h.pid, h.label, h.app, h.version, h.state, h.leader, h.queues, h.load, h.cores,
       extract(epoch FROM now() - h.renewed_at)::double precision, h.renewed_at < now() - h.lease, h.problems::text,
       w.queue, w.slot, w.pid, w.state, w.job_id, w.task, w.since, w.jobs, w.attempt, w.max_attempts, w.running, w.seconds_left,
       w.cpu, w.rss, w.stalled, w.stop_reason, w.version, j.progress, (SELECT count(*) FROM notified)
  FROM pgworkers.host h
  LEFT JOIN pgworkers.worker w ON w.host = h.id
  LEFT JOIN LATERAL (SELECT j.progress::text FROM pgworkers.job j WHERE j.id = w.job_id AND j.host = h.id LIMIT 1) j ON true
 ORDER BY h.name, h.started_at, h.id, w.job_id IS NULL, w.queue, w.slot
 LIMIT %(limit)s::bigint
