-- In how many seconds each duty of the leader is due: one statement instead of one for each duty. NULL: nothing to do. Reads only. Indexes:
-- job_scheduled, schedule_due, job_expires, dependency_new, batch_open; there are few queues.
SELECT (SELECT greatest(date_part('epoch', least(greatest(j.run_at, 'epoch'), pgworkers.far_future()) - now()), 0)
          FROM pgworkers.job j WHERE j.state = 'scheduled' ORDER BY j.run_at LIMIT 1),
       (SELECT CASE WHEN s.due_at <= now() THEN 0
                    WHEN s.due_at < pgworkers.far_future() THEN date_part('epoch', s.due_at - now()) END
          FROM pgworkers.schedule s WHERE NOT s.paused ORDER BY s.due_at LIMIT 1),
       (SELECT greatest(date_part('epoch', least(greatest(j.expires_at, 'epoch'), pgworkers.far_future()) - now()), 0)
          FROM pgworkers.job j WHERE j.expires_at IS NOT NULL AND j.state <> 'running' ORDER BY j.expires_at LIMIT 1),
       coalesce((SELECT 0 FROM pgworkers.dependency d WHERE NOT d.linked ORDER BY d.job_id LIMIT 1),
                (SELECT 0 FROM pgworkers.ended_parent LIMIT 1)),
       (SELECT 0 FROM pgworkers.batch b WHERE b.finished_at IS NULL ORDER BY b.id LIMIT 1),
       (SELECT 0 FROM pgworkers.queue q
         WHERE q.cluster_workers IS NOT NULL OR (q.workers IS NULL AND q.declared_cluster_workers IS NOT NULL) LIMIT 1)
