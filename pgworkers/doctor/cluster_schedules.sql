-- Schedules that fire, with how long the leader should have looked at them (a new one is due at once), their last tick and
-- what became of it. Templates of scoped schedules do not fire. Index: the primary keys. No guard: it only reads.
SELECT s.name, s.scope, s.task, s.paused AS is_paused, s.error,
       extract(epoch FROM now() - CASE WHEN s.due_at = '-infinity' THEN s.changed_at ELSE s.due_at END)::double precision
           AS overdue_seconds,
       EXISTS (SELECT FROM pgworkers.task t WHERE t.name = s.task) AS is_task_known,
       extract(epoch FROM now() - l.at)::double precision AS seconds_since_tick, l.reason, s.last_job,
       EXISTS (SELECT FROM pgworkers.job j WHERE j.id = s.last_job AND j.state = 'running') AS is_last_job_running
  FROM pgworkers.schedule s
  LEFT JOIN LATERAL (SELECT t.at, t.reason FROM pgworkers.tick t WHERE t.schedule = s.name AND t.scope = s.scope
                      ORDER BY t.at DESC LIMIT 1) l ON true
 WHERE (s.scope <> '') = (s.scope_kind <> '')
 ORDER BY s.due_at, s.name, s.scope
 LIMIT 1000
