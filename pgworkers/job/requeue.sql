-- An operator wants these jobs to run (again): dead and cancelled ones come back from history with fresh budgets, scheduled
-- ones become ready at once. The lease is kept, so that the fence goes on growing. A unique key that a newer job holds
-- keeps that one row back and no other. What somebody else changed while this waited for its row is "changing": the state that
-- this statement sees of it is an old one. Index: the primary keys. Guard: the state, under the row lock.
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT id FROM unnest(%(ids)s::bigint[]) AS w (id)
),
picked AS MATERIALIZED (
    SELECT h.*
      FROM pgworkers.history h
     WHERE h.id = ANY (%(ids)s::bigint[]) AND h.state IN ('dead', 'cancelled')
     ORDER BY h.id
       FOR UPDATE
),
back AS (
    INSERT INTO pgworkers.job (id, state, priority, queue, task, args, lease, max_attempts, max_crashes, created_at,
                               deadline_at, timeout, memory, unique_key, concurrency_key, checkpoint, errors, meta,
                               batch_id, linked)
    SELECT id, 'ready', priority, queue, task, args, lease, max_attempts, max_crashes, created_at,
           now() + (deadline_at - created_at), timeout, memory, unique_key, concurrency_key, checkpoint, errors, meta, batch_id,
           linked
      FROM picked
     ORDER BY id
    ON CONFLICT DO NOTHING
    RETURNING id, queue
),
gone AS (
    DELETE FROM pgworkers.history h
     USING picked p
     WHERE h.id = p.id AND h.finished_at = p.finished_at AND h.id IN (SELECT id FROM back)
),
early AS MATERIALIZED (
    SELECT j.id
      FROM pgworkers.job j
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.state::text = 'scheduled'
     ORDER BY j.id
       FOR UPDATE
),
woken AS (
    UPDATE pgworkers.job j
       SET state = 'ready', run_at = now()
     WHERE j.id = ANY (ARRAY(SELECT id FROM early)) AND j.state::text = 'scheduled'
    RETURNING j.id, j.queue
),
told AS MATERIALIZED (
    SELECT pgworkers.tell('ready:' || queue) FROM (SELECT queue FROM back UNION SELECT queue FROM woken) q
)
SELECT w.id,
       CASE WHEN w.id IN (SELECT id FROM back UNION ALL SELECT id FROM woken) THEN 'requeued'
            WHEN w.id IN (SELECT id FROM picked) THEN 'conflict'
            WHEN seen.state IN ('scheduled', 'dead', 'cancelled') THEN 'changing'
            ELSE coalesce(seen.state, 'missing') END,
       (SELECT count(*) FROM told)
  FROM wanted w
 CROSS JOIN LATERAL (
       SELECT coalesce((SELECT j.state::text FROM pgworkers.job j WHERE j.id = w.id),
                       (SELECT h.state::text FROM pgworkers.history h WHERE h.id = w.id LIMIT 1)) AS state) seen
 ORDER BY w.id
