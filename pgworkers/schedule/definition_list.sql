-- Schedules with their last tick, for people. Index: the primary keys.
SELECT now(), s.name, s.scope, s.scope_kind, s.task, s.cron, s.every, s.tz, s.jitter, s.starts_at, s.ends_at, s.missed,
       s.missed_window, s.overlap, s.reentrant, a.args, s.paused, s.revision, s.created_at, s.changed_at,
       s.planned_until, s.skipped, s.error, l.at, l.manual, l.job_id, l.outcome, l.error_code, l.duration
  FROM pgworkers.schedule s
  JOIN pgworkers.schedule_args a ON a.name = s.name AND a.scope = s.scope
  LEFT JOIN LATERAL (SELECT * FROM pgworkers.ticks t WHERE t.schedule = s.name AND t.scope = s.scope
                      ORDER BY t.at DESC LIMIT 1) l ON true
 WHERE (%(name)s::text IS NULL OR s.name = %(name)s::text) AND (%(scope)s::text IS NULL OR s.scope = %(scope)s::text)
 ORDER BY s.name, s.scope
 LIMIT %(limit)s::bigint
