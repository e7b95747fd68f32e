-- Which of these live jobs are locked by somebody else just now. Waits for nobody. Index: the primary key.
WITH free AS MATERIALIZED (
    SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id FOR UPDATE SKIP LOCKED
)
SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (%(ids)s::bigint[]) AND j.id <> ALL (ARRAY(SELECT id FROM free))
