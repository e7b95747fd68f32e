-- serves: 0008
-- What people and programs did to jobs and to the retention of queues from outside: the trace that operators cannot rewrite. They have no right to write `history`;
-- these functions act for them and leave a row here.

CREATE TABLE pgworkers.operation (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    verb        text        NOT NULL,
    job_id      bigint,                                  -- the job, or
    queue       text,                                    -- the queue that was changed
    login       text        NOT NULL DEFAULT session_user,
    os_user     text,                                    -- "anna@laptop", as reported by the caller
    reason      text,
    state       pgworkers.job_state,                     -- the end that was taken out of history, and when it was;
    finished_at timestamptz,                             -- of a forgotten job nothing else is left
    CONSTRAINT operation_verb CHECK (verb IN ('cancel', 'discard', 'purge', 'retry', 'forget', 'retention', 'deadline')),
    CONSTRAINT operation_of_one CHECK (num_nonnulls(job_id, queue) = 1),
    CONSTRAINT operation_texts_fit CHECK (octet_length(reason) <= 2000 AND octet_length(os_user) <= 400)
);
CREATE INDEX operation_job ON pgworkers.operation (job_id, id);
CREATE INDEX operation_at ON pgworkers.operation (at);

-- A shorter retention deletes history, so a change of it leaves a trace, whatever statement makes it.
CREATE FUNCTION pgworkers.trace_retention() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pgworkers.operation (verb, queue, reason)
    VALUES ('retention', NEW.name,
            format('from %s to %s', coalesce(OLD.retention::text, 'the default'), coalesce(NEW.retention::text, 'the default')));
    RETURN NULL;
END $$;
CREATE TRIGGER queue_retention_changed AFTER UPDATE OF retention ON pgworkers.queue
FOR EACH ROW WHEN (OLD.retention IS DISTINCT FROM NEW.retention) EXECUTE FUNCTION pgworkers.trace_retention();

-- An operator wants these jobs to run (again): dead and cancelled ones come back from history with fresh budgets, scheduled
-- ones become ready at once. The lease is kept, so that the fence goes on growing. A unique key that a newer job holds
-- keeps that one row back and no other. A row that another session changed while this waited for it is "changing": the state that
-- this statement sees of it is an old one. Index: the primary keys. Guard: the state, under the row lock.
CREATE FUNCTION pgworkers.requeue(ids bigint[], reason text DEFAULT NULL, os_user text DEFAULT NULL)
RETURNS TABLE (id bigint, outcome text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH wanted AS MATERIALIZED (
        SELECT DISTINCT id FROM unnest(requeue.ids) AS w (id)
    ),
    picked AS MATERIALIZED (
        SELECT h.*
          FROM pgworkers.history h
         WHERE h.id = ANY (requeue.ids) AND h.state IN ('dead', 'cancelled')
         ORDER BY h.id
           FOR UPDATE
    ),
    back AS (
        INSERT INTO pgworkers.job (id, state, priority, queue, task, args, lease, max_attempts, max_crashes, created_at,
                                   deadline_at, timeout, memory, unique_key, concurrency_key, checkpoint, errors, meta,
                                   batch_id, linked, enqueued_by)
        SELECT id, 'ready', priority, queue, task, args, lease, max_attempts, max_crashes, created_at,
               now() + (deadline_at - created_at), timeout, memory, unique_key, concurrency_key, checkpoint, errors, meta, batch_id,
               linked, enqueued_by
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
         WHERE j.id = ANY (requeue.ids) AND j.state::text = 'scheduled'
         ORDER BY j.id
           FOR UPDATE
    ),
    woken AS (
        UPDATE pgworkers.job j
           SET state = 'ready', run_at = now()
         WHERE j.id = ANY (ARRAY(SELECT id FROM early)) AND j.state::text = 'scheduled'
        RETURNING j.id, j.queue
    ),
    traced AS (
        INSERT INTO pgworkers.operation (verb, job_id, reason, os_user, state, finished_at)
        SELECT 'retry', b.id, requeue.reason, requeue.os_user, p.state, p.finished_at FROM back b JOIN picked p ON p.id = b.id
        UNION ALL
        SELECT 'retry', w.id, requeue.reason, requeue.os_user, 'scheduled', NULL FROM woken w
        RETURNING job_id
    ),
    told AS MATERIALIZED (
        SELECT pgworkers.tell('ready:' || queue) FROM (SELECT queue FROM back UNION SELECT queue FROM woken) q
    )
    SELECT w.id,
           CASE WHEN w.id IN (SELECT id FROM back UNION ALL SELECT id FROM woken) THEN 'requeued'
                WHEN w.id IN (SELECT id FROM picked) THEN 'conflict'
                WHEN seen.state IN ('scheduled', 'dead', 'cancelled') THEN 'changing'
                ELSE coalesce(seen.state, 'missing') END
      FROM wanted w
     CROSS JOIN LATERAL (
           SELECT coalesce((SELECT j.state::text FROM pgworkers.job j WHERE j.id = w.id),
                           (SELECT h.state::text FROM pgworkers.history h WHERE h.id = w.id LIMIT 1)) AS state) seen
     WHERE (SELECT count(*) FROM told) >= 0 AND (SELECT count(*) FROM traced) >= 0
     ORDER BY w.id;
END $$;

-- Forget dead jobs for good, with their post-mortems. Index: the primary keys. Guard: still dead under the row lock, so a job
-- that an operator has just put back is never deleted; rows are locked in id order. One that another job waits for is kept: its
-- follower needs it for the reason, and perhaps for a retry. Retention moves a row by deleting it and inserting it again (keep_rows), once: who has
-- waited for that finds nothing, and finds it in the second round, which sees the new row.
CREATE FUNCTION pgworkers.forget(ids bigint[], reason text DEFAULT NULL, os_user text DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted    bigint[] := forget.ids;
    found     bigint[];
    forgotten bigint[] := '{}';
BEGIN
    FOR round IN 1 .. 2 LOOP
        EXIT WHEN coalesce(cardinality(wanted), 0) = 0;
        WITH dead AS MATERIALIZED (
            SELECT h.id, h.finished_at
              FROM pgworkers.history h
             WHERE h.id = ANY (wanted) AND h.state = 'dead'
               AND NOT EXISTS (SELECT FROM pgworkers.dependency d WHERE d.parent_id = h.id)
             ORDER BY h.id
               FOR UPDATE
        ),
        gone AS (
            DELETE FROM pgworkers.history h
             USING dead d
             WHERE h.id = d.id AND h.finished_at = d.finished_at AND h.state = 'dead'
            RETURNING h.id, h.finished_at
        ),
        traced AS (
            INSERT INTO pgworkers.operation (verb, job_id, reason, os_user, state, finished_at)
            SELECT 'forget', g.id, forget.reason, forget.os_user, 'dead', g.finished_at FROM gone g
        )
        SELECT coalesce(array_agg(g.id), '{}') INTO found FROM gone g;
        forgotten := forgotten || found;
        wanted := ARRAY(SELECT w.id FROM unnest(wanted) AS w (id) WHERE w.id <> ALL (found));
    END LOOP;
    IF cardinality(forgotten) > 0 THEN
        FOR round IN 1 .. 2 LOOP
            DELETE FROM pgworkers.attempt a WHERE a.job_id = ANY (forgotten);
        END LOOP;
    END IF;
    RETURN QUERY SELECT f.id FROM unnest(forgotten) AS f (id) ORDER BY f.id;
END $$;
