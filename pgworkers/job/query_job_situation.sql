-- What the state of a job depends on besides its own row: whether a host knows its task, whether its queue is served, paused or throttled, how
-- many slots are free under its limits, what it waits for, and which process holds it. Index: the primary keys, dependency_job, batch_open.
WITH alive AS (
    SELECT h.queues, h.tasks, h.name, h.problems FROM pgworkers.host h
     WHERE h.renewed_at >= now() - h.lease AND h.state IN ('starting', 'running')
)
SELECT EXISTS (SELECT FROM pgworkers.task t WHERE t.name = j.task),
       coalesce(q.paused, false),
       CASE WHEN q.throttled_until > now() THEN extract(epoch FROM q.throttled_until - now()) END::double precision,
       least(q.workers, q.cluster_workers),
       (SELECT count(*) FROM alive),
       (SELECT count(*) FROM alive a WHERE j.queue = ANY (a.queues)),
       (SELECT count(*) FROM alive a WHERE j.queue = ANY (a.queues) AND j.task = ANY (a.tasks)),
       r.of_task, r.of_key,
       (SELECT count(*) FROM pgworkers.dependency d WHERE d.job_id = j.id),
       ARRAY(SELECT concat_ws(' ', d.parent_id, coalesce(p.state, 'gone'), p.task)
               FROM pgworkers.dependency d
               LEFT JOIN LATERAL (SELECT v.state::text, v.task FROM pgworkers.jobs v WHERE v.id = d.parent_id
                                   ORDER BY v.finished_at DESC NULLS FIRST LIMIT 1) p ON true
              WHERE d.job_id = j.id ORDER BY d.parent_id LIMIT 5),
       (SELECT b.id FROM pgworkers.batch b WHERE b.then_id = j.id AND b.finished_at IS NULL LIMIT 1),
       j.run_at = pgworkers.far_future(),
       h.name, w.queue || '/' || w.slot, w.pid, coalesce(w.state = 'suspended', false),
       p.name, p.error, p.traceback
  FROM pgworkers.jobs j
  LEFT JOIN pgworkers.job live ON live.id = j.id
  LEFT JOIN pgworkers.queue q ON q.name = j.queue
  LEFT JOIN pgworkers.host h ON h.id = j.host
  LEFT JOIN LATERAL (
       SELECT w.queue, w.slot, w.pid, w.state FROM pgworkers.worker w
        WHERE w.host = j.host AND w.job_id = j.id LIMIT 1) w ON true
  LEFT JOIN LATERAL (
       SELECT t.free AS of_task, k.free AS of_key
         FROM pgworkers.free_slots_of_task(live.task) t CROSS JOIN pgworkers.free_slots_of_key(live.task, live.concurrency_key) k) r
         ON live.behind_limit OR live.concurrency_key IS NOT NULL OR EXISTS (
            SELECT FROM pgworkers.concurrency c WHERE c.kind = 'task' AND c.name = live.task)
  LEFT JOIN LATERAL (
       SELECT a.name, p.error, p.traceback
         FROM alive a, jsonb_to_recordset(a.problems) AS p (queue text, error text, traceback text)
        WHERE p.queue = j.queue ORDER BY a.name LIMIT 1) p ON true
 WHERE j.id = %(id)s::bigint
 ORDER BY j.finished_at DESC NULLS FIRST
 LIMIT 1
