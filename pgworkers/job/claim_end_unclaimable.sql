-- End the ready jobs of these queues and tasks that make each claim fail: dead, with the reason. Returns them.
-- Indexes and guard: pgworkers.end_unclaimable_jobs() in schema/0001_initial.sql.
SELECT s.id, s.lease, s.queue, s.task, s.attempt, s.max_attempts, s.reason
  FROM pgworkers.end_unclaimable_jobs(%(queues)s::text[], %(tasks)s::text[], %(max_rows)s::integer) s
