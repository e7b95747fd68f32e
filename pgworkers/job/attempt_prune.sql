-- Delete attempts that were kept with a dead job, once that job is gone; one portion of a walk in the order of jobs. Reads at most `portion`
-- rows. Only in the partition of kept rows: the others are dropped. Indexes: attempt_job, and the primary keys for each attempt; OFFSET keeps
-- it so (docs/adr/05). Guard: the row lock, which skips rows that others hold.
WITH page AS MATERIALIZED (
    SELECT a.ctid AS at, a.job_id, a.finished_at
      FROM pgworkers.attempt_kept a
     WHERE a.job_id > %(after)s::bigint
     ORDER BY a.job_id
     LIMIT %(portion)s::bigint
),
locked AS MATERIALIZED (
    SELECT a.ctid AS at
      FROM pgworkers.attempt_kept a
     WHERE a.ctid = ANY (ARRAY(
               SELECT p.at
                 FROM page p
                WHERE p.finished_at < now() - make_interval(secs => %(retention)s::double precision)
                  AND NOT EXISTS (SELECT FROM pgworkers.history h WHERE h.id = p.job_id OFFSET 0)
                  AND NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.id = p.job_id OFFSET 0)))
       FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgworkers.attempt_kept a WHERE a.ctid = ANY (ARRAY(SELECT l.at FROM locked l)) RETURNING a.job_id
)
SELECT (SELECT max(p.job_id) FROM page p HAVING count(*) >= %(portion)s::bigint), (SELECT count(*) FROM gone)
