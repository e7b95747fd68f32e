-- Flow control and statistics: rate buckets, dependencies, batches, per-minute roll-ups. One transaction.

-- Tokens of one scope. The balance may be negative: those tokens are reserved and due later. `had` and `granted` are the last
-- answer: an upsert can return only what it wrote.
CREATE TABLE pgworkers.bucket (
    scope      text PRIMARY KEY,
    rate       double precision NOT NULL,                -- tokens a second
    burst      double precision NOT NULL,                -- as many may lie in it
    tokens     double precision NOT NULL,
    had        double precision NOT NULL DEFAULT 0,
    granted    double precision NOT NULL DEFAULT 0,
    updated_at timestamptz      NOT NULL,
    CONSTRAINT bucket_scope_fits CHECK (octet_length(scope) BETWEEN 1 AND 200),
    CONSTRAINT bucket_flows CHECK (rate > 0 AND burst >= 1)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- `job_id` waits for `parent_id`. The row goes when the wait is over; with on_failed = 'wait' it outlives a failed parent, which
-- an operator may requeue.
CREATE TABLE pgworkers.dependency (
    parent_id bigint NOT NULL,
    job_id    bigint NOT NULL,
    on_failed text   NOT NULL,
    PRIMARY KEY (parent_id, job_id),
    CONSTRAINT dependency_on_failed CHECK (on_failed IN ('cancel', 'run', 'wait'))
);
CREATE INDEX dependency_job ON pgworkers.dependency (job_id);

-- Many jobs (job.batch_id), and one that runs after the last of them. No counter: the jobs themselves are counted.
CREATE TABLE pgworkers.batch (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    total        bigint      NOT NULL DEFAULT 0,
    then_id      bigint,                                 -- waits; released when the last job of the batch ended
    on_failed    text        NOT NULL DEFAULT 'run',     -- what failed jobs mean for `then_id`
    created_at   timestamptz NOT NULL DEFAULT now(),
    cancelled_at timestamptz,
    finished_at  timestamptz,
    CONSTRAINT batch_on_failed CHECK (on_failed IN ('cancel', 'run', 'wait'))
);
CREATE INDEX batch_open ON pgworkers.batch (id) WHERE finished_at IS NULL;
CREATE INDEX batch_finished ON pgworkers.batch (finished_at) WHERE finished_at IS NOT NULL;

-- What a new job that comes after these has to wait for: `parents` that are still to end, or `failed`, one that already did not
-- succeed. Takes the row locks of the parents, so that none of them ends unheard between this look and the commit.
CREATE FUNCTION pgworkers.follow(ids bigint[], on_failed text, OUT parents bigint[], OUT failed bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted bigint[] := ARRAY(SELECT DISTINCT w.id FROM unnest(follow.ids) AS w (id) ORDER BY w.id);
    one record;
    again boolean := true;
BEGIN
    IF follow.on_failed NOT IN ('cancel', 'run', 'wait') THEN
        RAISE EXCEPTION 'on_failed is %: use cancel, run or wait', follow.on_failed USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WHILE again LOOP
        again := false;
        failed := NULL;
        PERFORM FROM pgworkers.job j WHERE j.id = ANY (wanted) ORDER BY j.id FOR UPDATE;
        UPDATE pgworkers.job j SET linked = true WHERE j.id = ANY (wanted) AND NOT j.linked;
        parents := ARRAY(SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (wanted));
        FOR one IN
            SELECT w.id, (SELECT h.state FROM pgworkers.history h WHERE h.id = w.id ORDER BY h.finished_at DESC LIMIT 1) AS state
              FROM unnest(wanted) AS w (id)
             WHERE w.id <> ALL (parents)
        LOOP
            IF one.state IS NULL THEN
                RAISE EXCEPTION 'there is no job #% to come after', one.id USING ERRCODE = 'no_data_found';
            ELSIF one.state <> 'succeeded' AND follow.on_failed = 'cancel' THEN
                failed := one.id;
            ELSIF one.state <> 'succeeded' AND follow.on_failed = 'wait' THEN
                UPDATE pgworkers.history h SET linked = true WHERE h.id = one.id;
                again := again OR NOT FOUND;  -- requeued just now: it is alive again
                parents := parents || one.id;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- A new job begins to wait for its parents; or it ends at once, because one of them had failed.
CREATE FUNCTION pgworkers.wait_for(job_id bigint, parents bigint[], on_failed text, failed bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pgworkers.dependency (parent_id, job_id, on_failed)
    SELECT p.id, wait_for.job_id, wait_for.on_failed FROM unnest(wait_for.parents) AS p (id);
    IF wait_for.failed IS NOT NULL THEN
        UPDATE pgworkers.job j
           SET errors = ARRAY['cancelled: job #' || wait_for.failed || ', which it was to come after, did not succeed']
         WHERE j.id = wait_for.job_id;
        PERFORM pgworkers.cancel(wait_for.job_id);
    END IF;
END $$;

-- Waiting jobs begin. Whoever calls holds their row locks.
CREATE FUNCTION pgworkers.let_go(ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    freed text;
BEGIN
    FOR freed IN
        WITH moved AS (
            UPDATE pgworkers.job j
               SET state = 'ready', run_at = now()
             WHERE j.id = ANY (let_go.ids) AND j.state = 'scheduled' AND j.run_at = pgworkers.never()
               AND NOT EXISTS (SELECT FROM pgworkers.dependency d WHERE d.job_id = j.id)
            RETURNING j.queue
        )
        SELECT DISTINCT m.queue FROM moved m
    LOOP
        PERFORM pgworkers.tell('ready:' || freed);
    END LOOP;
END $$;

-- Jobs that others enqueued with their own ends (ctx.enqueue). Called by the statement that writes those ends, with the ends it wrote:
-- `children` has a list for each "id:lease", `parents` are such keys. They know neither unique keys nor `after`, so nothing waits here.
CREATE FUNCTION pgworkers.bear(children jsonb, parents text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT c.*
          FROM unnest(bear.parents) AS p (key)
         CROSS JOIN LATERAL jsonb_to_recordset(bear.children -> p.key)
               AS c (task text, args jsonb, queue text, priority integer, run_at timestamptz, delay double precision,
                     max_attempts integer, max_crashes integer, timeout double precision, memory bigint,
                     deadline double precision, expires double precision, concurrency_key text, meta jsonb)
    LOOP
        PERFORM pgworkers.enqueue(
            task => one.task, args => one.args, queue => one.queue, priority => one.priority, run_at => one.run_at,
            delay => make_interval(secs => one.delay), max_attempts => one.max_attempts, max_crashes => one.max_crashes,
            timeout => make_interval(secs => one.timeout), memory => one.memory,
            deadline => make_interval(secs => one.deadline), expires => make_interval(secs => one.expires),
            concurrency_key => one.concurrency_key, meta => one.meta);
    END LOOP;
END $$;

-- The state of the newest live job of a batch, or NULL: none lives.
CREATE FUNCTION pgworkers.newest(batch_id bigint) RETURNS pgworkers.job_state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT j.state FROM pgworkers.job j WHERE j.batch_id = newest.batch_id ORDER BY j.id DESC LIMIT 1);
END $$;

-- Linked jobs ended (all of them badly, unless `succeeded` names them): whoever waits for them is released, or cancelled with
-- them, and their batches are complete if nothing of them lives. Called by every statement that moves rows to history.
-- `ran`: they were running, not waiting. Locks in id order what it touches, after the rows that ended.
CREATE FUNCTION pgworkers.ended(ids bigint[], batches bigint[], ran boolean, succeeded bigint[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failed bigint[] := ARRAY(SELECT f.id FROM unnest(ended.ids) AS f (id) WHERE f.id <> ALL (coalesce(ended.succeeded, '{}')));
    doomed bigint[];
    touched bigint[];
    seen bigint[] := '{}';
    one record;
    newest pgworkers.job_state;
BEGIN
    DELETE FROM pgworkers.dependency d WHERE d.job_id = ANY (ended.ids);
    LOOP
        doomed := ARRAY(
            WITH RECURSIVE falling (id) AS (  -- through those that wait: one that an operator let begin is not falling
                SELECT d.job_id FROM pgworkers.dependency d JOIN pgworkers.job j ON j.id = d.job_id
                 WHERE d.parent_id = ANY (failed) AND d.on_failed = 'cancel'
                   AND j.state = 'scheduled' AND j.run_at = pgworkers.never()
                UNION
                SELECT d.job_id FROM falling f
                  JOIN pgworkers.dependency d ON d.parent_id = f.id AND d.on_failed = 'cancel'
                  JOIN pgworkers.job j ON j.id = d.job_id AND j.state = 'scheduled' AND j.run_at = pgworkers.never())
            SELECT id FROM falling);
        touched := ARRAY(SELECT DISTINCT d.job_id FROM pgworkers.dependency d WHERE d.parent_id = ANY (ended.ids || doomed));
        EXIT WHEN touched <@ seen;  -- again until nothing new came in before its lock was taken
        PERFORM FROM pgworkers.job j WHERE j.id = ANY (touched) AND j.id <> ALL (seen) ORDER BY j.id FOR UPDATE;
        seen := seen || touched;
    END LOOP;

    IF cardinality(doomed) > 0 THEN
        FOR one IN
            WITH gone AS (
                DELETE FROM pgworkers.job j
                 WHERE j.id = ANY (doomed) AND j.state = 'scheduled' AND j.run_at = pgworkers.never()
                RETURNING j.*
            )
            INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,
                                           max_attempts, max_crashes, created_at, run_at, deadline_at, timeout, memory,
                                           unique_key, concurrency_key, checkpoint, progress, errors, meta, batch_id, linked)
            SELECT g.id, 'cancelled', 'cancelled', g.priority, g.queue, g.task, g.args, g.lease, g.attempt, g.crashes,
                   g.max_attempts, g.max_crashes, g.created_at, g.run_at, g.deadline_at, g.timeout, g.memory, g.unique_key,
                   g.concurrency_key, g.checkpoint, g.progress,
                   g.errors || ('cancelled: job #' || (SELECT min(d.parent_id) FROM pgworkers.dependency d
                                                        WHERE d.job_id = g.id AND d.parent_id = ANY (failed || doomed))
                                || ', which it was to come after, did not succeed'), g.meta, g.batch_id, g.linked
              FROM gone g
            RETURNING id, batch_id
        LOOP
            ended.ids := ended.ids || one.id;
            ended.batches := ended.batches || one.batch_id;
            failed := failed || one.id;
            ended.ran := false;
            PERFORM pgworkers.tell(one.id::text, 'pgworkers_done');
        END LOOP;
    END IF;
    IF cardinality(touched) > 0 THEN
        DELETE FROM pgworkers.dependency d
         WHERE d.parent_id = ANY (ended.ids) AND (d.on_failed <> 'wait' OR d.parent_id <> ALL (failed));
        PERFORM pgworkers.let_go(touched);
    END IF;

    FOR one IN
        SELECT b.id, bool_or(b.job_id = ANY (failed)) AS failed
          FROM unnest(ended.ids, ended.batches) AS b (job_id, id)
         WHERE b.id IS NOT NULL
         GROUP BY b.id
         ORDER BY b.id
    LOOP
        -- Whoever asks under the exclusive lock (settle) sees either our rows gone or us not yet here. See docs/adr/0702.
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('pgworkers.batch ' || one.id, 0));
        newest := pgworkers.newest(one.id);
        IF newest IS NULL THEN
            PERFORM pgworkers.complete(one.id, one.failed);
        ELSIF newest = 'running' OR NOT ended.ran THEN
            PERFORM pgworkers.tell('batch:' || one.id);  -- others may be ending the rest just now: look after commit
        END IF;
    END LOOP;
END $$;

-- Nothing of the batch lives: what comes after it begins, once. `failed`: one of those that end in this very statement failed;
-- the others are found in history.
CREATE FUNCTION pgworkers.complete(batch_id bigint, failed boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_batch pgworkers.batch;
BEGIN
    SELECT * INTO found_batch FROM pgworkers.batch b WHERE b.id = complete.batch_id AND b.finished_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF found_batch.then_id IS NOT NULL AND found_batch.on_failed <> 'run' AND NOT complete.failed THEN
        complete.failed := EXISTS (SELECT FROM pgworkers.history h
                                    WHERE h.batch_id = complete.batch_id AND h.state <> 'succeeded');
    END IF;
    IF found_batch.then_id IS NOT NULL AND complete.failed AND found_batch.on_failed = 'wait' THEN
        RETURN false;  -- an operator may requeue what failed
    END IF;
    UPDATE pgworkers.batch b SET finished_at = now() WHERE b.id = complete.batch_id;
    IF found_batch.then_id IS NOT NULL AND complete.failed AND found_batch.on_failed = 'cancel' THEN
        UPDATE pgworkers.job j
           SET errors = j.errors || ('cancelled: batch #' || complete.batch_id || ' has jobs that did not succeed')
         WHERE j.id = found_batch.then_id AND j.state = 'scheduled' AND j.run_at = pgworkers.never();
        IF FOUND THEN
            PERFORM pgworkers.cancel(found_batch.then_id);
        END IF;
    ELSIF found_batch.then_id IS NOT NULL THEN
        PERFORM pgworkers.let_go(ARRAY[found_batch.then_id]);
    END IF;
    PERFORM pgworkers.tell('batch:' || complete.batch_id, 'pgworkers_done');
    RETURN true;
END $$;

-- After somebody notified 'batch:<id>': is the batch complete, now that those who ended its jobs have committed? 'busy': some
-- have not, ask again soon. In a transaction of its own, which holds nothing that they might want.
CREATE FUNCTION pgworkers.settle(batch_id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgworkers.newest(settle.batch_id) <> 'running' THEN
        RETURN 'live';
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('pgworkers.batch ' || settle.batch_id, 0)) THEN
        RETURN 'busy';
    END IF;
    IF pgworkers.newest(settle.batch_id) IS NOT NULL THEN
        RETURN 'live';
    END IF;
    PERFORM FROM pgworkers.batch b WHERE b.id = settle.batch_id AND b.finished_at IS NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM pgworkers.batch b WHERE b.id = settle.batch_id AND b.finished_at IS NULL)
                    THEN 'busy' ELSE 'finished' END;
    END IF;
    RETURN CASE WHEN pgworkers.complete(settle.batch_id, false) THEN 'finished' ELSE 'waiting' END;
END $$;

-- What happened in a minute, per queue and task: `started` rows hold how long jobs had waited, the others how long attempts
-- took, by verdict. Hosts add to the same rows: histograms of fixed buckets merge exactly. Nothing is written per job.
CREATE TABLE pgworkers.stat (
    minute    timestamptz      NOT NULL,
    queue     text             NOT NULL,
    task      text             NOT NULL,
    verdict   text             NOT NULL,                 -- or 'started'
    count     bigint           NOT NULL,
    seconds   double precision NOT NULL,                 -- the sum of what the histogram holds
    cpu       double precision NOT NULL,                 -- seconds
    histogram bigint[]         NOT NULL,                 -- 1: below 1 ms; n: from 1 ms * 2^((n - 2) / 4)
    PRIMARY KEY (minute, queue, task, verdict)
);

CREATE FUNCTION pgworkers.add(a bigint[], b bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY(SELECT coalesce(u.x, 0) + coalesce(u.y, 0) FROM unnest(a, b) WITH ORDINALITY AS u (x, y, n) ORDER BY u.n)
$$;
CREATE AGGREGATE pgworkers.merged(bigint[]) (SFUNC = pgworkers.add, STYPE = bigint[], INITCOND = '{}');

-- The value below which a share `q` of a histogram lies, in seconds, to the middle of its bucket: within 10 percent.
CREATE FUNCTION pgworkers.percentile(histogram bigint[], q double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN s.n = 1 THEN 0.0005 ELSE 0.001 * power(2, (s.n - 1.5) / 4) END
      FROM (SELECT u.n, u.c, sum(u.c) OVER (ORDER BY u.n) AS upto, sum(u.c) OVER () AS total
              FROM unnest(histogram) WITH ORDINALITY AS u (c, n)) s
     WHERE s.c > 0 AND s.upto >= q * s.total
     ORDER BY s.n
     LIMIT 1
$$;

CREATE VIEW pgworkers.stats AS
SELECT s.minute, s.queue, s.task,
       coalesce(sum(s.count) FILTER (WHERE s.verdict = 'started'), 0)::bigint AS started,
       coalesce(sum(s.count) FILTER (WHERE s.verdict = 'succeeded'), 0)::bigint AS succeeded,
       coalesce(sum(s.count) FILTER (WHERE s.verdict NOT IN ('started', 'succeeded')), 0)::bigint AS unsuccessful,
       coalesce(jsonb_object_agg(s.verdict, s.count) FILTER (WHERE s.verdict <> 'started'), '{}') AS verdicts,
       pgworkers.percentile(pgworkers.merged(s.histogram) FILTER (WHERE s.verdict <> 'started'), 0.5) AS duration_p50,
       pgworkers.percentile(pgworkers.merged(s.histogram) FILTER (WHERE s.verdict <> 'started'), 0.95) AS duration_p95,
       pgworkers.percentile(pgworkers.merged(s.histogram) FILTER (WHERE s.verdict <> 'started'), 0.99) AS duration_p99,
       pgworkers.percentile(pgworkers.merged(s.histogram) FILTER (WHERE s.verdict = 'started'), 0.5) AS wait_p50,
       pgworkers.percentile(pgworkers.merged(s.histogram) FILTER (WHERE s.verdict = 'started'), 0.95) AS wait_p95,
       pgworkers.percentile(pgworkers.merged(s.histogram) FILTER (WHERE s.verdict = 'started'), 0.99) AS wait_p99,
       sum(s.cpu) AS cpu_seconds
  FROM pgworkers.stat s
 GROUP BY s.minute, s.queue, s.task;
