-- Ready jobs of these queues and tasks that make every claim fail: each is ended, dead, with the reason, and answered.
-- Indexes and guard: pgworkers.set_aside() in schema/0001_initial.sql.
SELECT s.id, s.lease, s.queue, s.task, s.attempt, s.max_attempts, s.reason
  FROM pgworkers.set_aside(%(queues)s::text[], %(tasks)s::text[], %(look)s::integer) s
