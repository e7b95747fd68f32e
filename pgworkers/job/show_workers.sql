-- The worker processes of all hosts, as of each host's last renewal.
SELECT host, host_name, queue, slot, pid, state, job_id, task, since, jobs
  FROM pgworkers.worker
 ORDER BY host_name, host, queue, slot
