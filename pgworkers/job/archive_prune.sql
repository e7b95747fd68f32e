-- Finished jobs past the retention that no dropped partition takes along: those of queues with a shorter one, and rows in
-- the default partition. Dead ones are kept for longer. Bounded. Guard: the row lock; a row that an operator just
-- requeued is gone, not deleted twice.
WITH old AS MATERIALIZED (
    SELECT h.id, h.finished_at
      FROM pgworkers.history h
      LEFT JOIN pgworkers.queue q ON q.name = h.queue
     WHERE h.finished_at < now() - (SELECT least(make_interval(secs => %(retention)s::double precision), min(retention))
                                      FROM pgworkers.queue)
       AND h.finished_at < now() - coalesce(q.retention, make_interval(secs => %(retention)s::double precision))
       AND (h.state <> 'dead' OR h.finished_at < now() - make_interval(secs => %(dead)s::double precision))
     LIMIT %(limit)s::bigint
       FOR UPDATE OF h SKIP LOCKED
)
DELETE FROM pgworkers.history h USING old o WHERE h.id = o.id AND h.finished_at = o.finished_at RETURNING h.id
