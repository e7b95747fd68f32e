-- End the ready jobs of these queues and tasks whose data is too large to print: dead. Returns them.
-- Indexes and guard: pgworkers.end_oversized_jobs() in schema/0001_initial.sql.
SELECT s.id, s.lease, s.queue, s.task, s.attempt, s.max_attempts, s.reason
  FROM pgworkers.end_oversized_jobs(%(queues)s::text[], %(tasks)s::text[], %(max_rows)s::integer) s
