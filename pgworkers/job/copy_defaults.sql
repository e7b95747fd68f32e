-- The clock of the database, and what the deployed apps declare about their tasks, which COPY cannot look up by itself. In microseconds: a
-- number reads the same whatever the session's DateStyle is. Also runs on users' connections: see enqueue.sql.
SELECT (pg_catalog.date_part('epoch', pg_catalog.now()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, t.name, t.queue,
       t.priority, t.max_attempts, t.max_crashes
  FROM (VALUES (1)) one (row)
  LEFT JOIN pgworkers.task t ON true
