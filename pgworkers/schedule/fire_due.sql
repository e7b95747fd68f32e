-- Schedules that are due for planning, the longest overdue first, with the time of the database. Index: schedule_due.
SELECT now(), s.name, s.scope, s.revision, s.planned_until, s.cron, s.every, s.tz, s.starts_at, s.ends_at, s.missed,
       s.missed_window, s.jitter
  FROM pgworkers.schedule s
 WHERE NOT s.paused AND s.due_at <= now()
 ORDER BY s.due_at, s.name, s.scope
 LIMIT %(limit)s::bigint
