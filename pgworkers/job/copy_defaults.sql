-- The database's clock, and what the deployed apps say about their tasks: what COPY cannot look up by itself.
SELECT now(), t.name, t.queue, t.priority, t.max_attempts, t.max_crashes
  FROM (VALUES (1)) one (row)
  LEFT JOIN pgworkers.task t ON true
