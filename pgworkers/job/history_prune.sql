-- Delete ended jobs past the retention of their queue, with their attempts; one portion of a walk in the order of ids. With `kept`: those that
-- outlived their partition. Without: those in daily partitions, and only of queues that keep their jobs for less than the longest retention;
-- the others are dropped with their partition. Dead jobs are kept longer, and jobs that another one waits for as long as it waits.
-- Reads at most `portion` rows. Guard: the row lock, which skips rows that others hold; a row that an operator requeued is already gone.
-- Indexes: the primary keys, attempt_job; a job that succeeded at once has no attempts there.
WITH terms AS MATERIALIZED (
    SELECT q.name, coalesce(q.retention, q.declared_retention) AS term FROM pgworkers.queue q
),
ends AS MATERIALIZED (
    SELECT least(min(t.term), r.retention) AS shortest, greatest(max(t.term), r.retention) AS longest, r.retention
      FROM (SELECT make_interval(secs => %(retention)s::double precision) AS retention) r
      LEFT JOIN terms t ON true
     GROUP BY r.retention
),
page AS MATERIALIZED (
    SELECT h.id, h.finished_at, h.queue, h.state
      FROM pgworkers.history h
     WHERE h.kept = %(kept)s::boolean AND h.id > %(after)s::bigint
       AND h.finished_at < (SELECT date_trunc('day', now() - e.shortest, 'UTC') + interval '24 hours' FROM ends e)  -- whole partitions
       AND (%(kept)s::boolean OR (SELECT e.shortest < e.longest FROM ends e))
     ORDER BY h.id
     LIMIT %(portion)s::bigint
),
old AS MATERIALIZED (
    SELECT p.id, p.finished_at
      FROM page p
     CROSS JOIN ends e
      LEFT JOIN terms t ON t.name = p.queue
     WHERE p.finished_at < now() - coalesce(t.term, e.retention)
       AND (%(kept)s::boolean OR coalesce(t.term, e.retention) < e.longest)
       AND (p.state <> 'dead' OR p.finished_at < now() - make_interval(secs => %(dead)s::double precision))
       AND NOT EXISTS (SELECT FROM pgworkers.dependency d WHERE d.parent_id = p.id OFFSET 0)
),
locked AS MATERIALIZED (
    SELECT h.id
      FROM pgworkers.history h
     WHERE h.kept = %(kept)s::boolean AND h.id = ANY (ARRAY(SELECT o.id FROM old o))
       AND h.finished_at <= (SELECT max(o.finished_at) FROM old o)
       FOR UPDATE OF h SKIP LOCKED
),
gone AS (
    DELETE FROM pgworkers.history h
     WHERE h.kept = %(kept)s::boolean AND h.id = ANY (ARRAY(SELECT l.id FROM locked l))
       AND h.finished_at <= (SELECT max(o.finished_at) FROM old o)
    RETURNING h.id, h.state <> 'succeeded' OR h.lease > 1 AS has_attempts
),
forgotten AS (
    DELETE FROM pgworkers.attempt a WHERE a.job_id = ANY (ARRAY(SELECT g.id FROM gone g WHERE g.has_attempts))
)
SELECT (SELECT max(p.id) FROM page p HAVING count(*) >= %(portion)s::bigint), (SELECT count(*) FROM gone)
