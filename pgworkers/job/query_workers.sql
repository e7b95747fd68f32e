-- The worker processes of all hosts, as of each host's last renewal; `lost` when that is longer ago than the host's lease.
SELECT w.host, w.host_name, w.queue, w.slot, w.pid, CASE WHEN h.renewed_at < now() - h.lease THEN 'lost' ELSE w.state END,
       w.job_id, w.task, w.since, w.jobs, h.label, h.pid
  FROM pgworkers.worker w
  JOIN pgworkers.host h ON h.id = w.host
 ORDER BY w.host_name, w.host, w.queue, w.slot
