-- Ready jobs of these queues and tasks that take too long to print: each is ended, dead, and answered.
-- Indexes and guard: pgworkers.set_loud_aside() in schema/0001_initial.sql.
SELECT s.id, s.lease, s.queue, s.task, s.attempt, s.max_attempts, s.reason
  FROM pgworkers.set_loud_aside(%(queues)s::text[], %(tasks)s::text[], %(look)s::integer) s
