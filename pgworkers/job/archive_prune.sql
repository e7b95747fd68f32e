-- Finished jobs past the retention of their queue that no dropped partition has taken along, and their post-mortems: a partition
-- stays for as long as the longest retention. Dead ones are kept for longer, and those that
-- another job waits for until it does not. Bounded. Guard: the row lock; a row that an operator just
-- requeued is gone, not deleted twice. Indexes: attempt_job, the primary key of dependency; a job that succeeded at once has no post-mortem.
WITH old AS MATERIALIZED (
    SELECT h.id, h.finished_at
      FROM pgworkers.history h
      LEFT JOIN pgworkers.queue q ON q.name = h.queue
     WHERE h.finished_at < now() - (SELECT least(make_interval(secs => %(retention)s::double precision),
                                                 min(coalesce(retention, declared_retention)))
                                      FROM pgworkers.queue)
       AND h.finished_at < now() - coalesce(q.retention, q.declared_retention,
                                            make_interval(secs => %(retention)s::double precision))
       AND (h.state <> 'dead' OR h.finished_at < now() - make_interval(secs => %(dead)s::double precision))
       AND NOT EXISTS (SELECT FROM pgworkers.dependency d WHERE d.parent_id = h.id)
     LIMIT %(limit)s::bigint
       FOR UPDATE OF h SKIP LOCKED
),
gone AS (
    DELETE FROM pgworkers.history h USING old o WHERE h.id = o.id AND h.finished_at = o.finished_at
    RETURNING h.id, h.state <> 'succeeded' OR h.lease > 1 AS examined
),
forgotten AS (
    DELETE FROM pgworkers.attempt a WHERE a.job_id = ANY (ARRAY(SELECT g.id FROM gone g WHERE g.examined))
)
SELECT id FROM gone
