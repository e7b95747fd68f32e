-- serves: 0003
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
    CONSTRAINT bucket_flows CHECK (rate > 0 AND rate < 'infinity' AND burst >= 1 AND burst < 'infinity')
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- `job_id` waits for `parent_id`. The row goes when the wait is over; with on_failed = 'wait' it outlives a failed parent, which
-- an operator may requeue.
CREATE TABLE pgworkers.dependency (
    parent_id bigint NOT NULL,
    job_id    bigint NOT NULL,
    on_failed text   NOT NULL,
    linked    boolean NOT NULL DEFAULT false,            -- the parent's row knows of it, so that its end is heard
    PRIMARY KEY (parent_id, job_id),
    CONSTRAINT dependency_on_failed CHECK (on_failed IN ('cancel', 'run', 'wait'))
);
CREATE INDEX dependency_job ON pgworkers.dependency (job_id);
CREATE INDEX dependency_new ON pgworkers.dependency (job_id) WHERE NOT linked;

-- Jobs that ended with more followers than one statement settles: the leader goes on with them (renew_links, link_parents).
CREATE TABLE pgworkers.ended_parent (
    id      bigint PRIMARY KEY,
    done_to bigint NOT NULL DEFAULT -9223372036854775808 -- up to this follower they are done
) WITH (fillfactor = 50);

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
-- succeed. `known_to`: the login that enqueues, if it may know only of its own jobs; those of others do not exist for it,
-- and it may add no follower to a job that already has 5000: each is work for the leader. Counted, not locked.
-- Takes no lock: the transaction that enqueues may stay open for long, and an end must not wait for it. A parent that ends
-- meanwhile is noticed by link_parents().
CREATE FUNCTION pgworkers.follow(ids bigint[], on_failed text, known_to text, OUT parents bigint[], OUT failed bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    IF follow.on_failed NOT IN ('cancel', 'run', 'wait') THEN
        RAISE EXCEPTION 'on_failed is %: use cancel, run or wait', follow.on_failed USING ERRCODE = 'invalid_parameter_value';
    ELSIF cardinality(follow.ids) > 1000 THEN
        RAISE EXCEPTION 'after names % jobs; a job comes after at most 1000 jobs', cardinality(follow.ids)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a batch, or a job in between.';
    END IF;
    parents := '{}';
    FOR one IN
        SELECT w.id, p.state
          FROM (SELECT DISTINCT u.id FROM unnest(follow.ids) AS u (id)) w
          LEFT JOIN LATERAL (
               (SELECT j.state, j.enqueued_by FROM pgworkers.job j WHERE j.id = w.id)
               UNION ALL
               (SELECT h.state, h.enqueued_by FROM pgworkers.history h WHERE h.id = w.id ORDER BY h.finished_at DESC LIMIT 1)
               LIMIT 1) p ON follow.known_to IS NULL OR p.enqueued_by = follow.known_to
         ORDER BY w.id
    LOOP
        IF one.state IS NULL THEN
            RAISE EXCEPTION 'there is no job #% to come after', one.id USING ERRCODE = 'no_data_found';
        ELSIF one.state <= 'running' OR (one.state <> 'succeeded' AND follow.on_failed = 'wait') THEN
            IF follow.known_to IS NOT NULL THEN
                PERFORM FROM pgworkers.dependency d WHERE d.parent_id = one.id OFFSET 4999 LIMIT 1;
                IF FOUND THEN
                    RAISE EXCEPTION '5000 jobs come after job #% already; % may not enqueue more', one.id, follow.known_to
                        USING ERRCODE = 'configuration_limit_exceeded', HINT = 'Use a job in between.';
                END IF;
            END IF;
            parents := parents || one.id;
        ELSIF one.state <> 'succeeded' AND follow.on_failed = 'cancel' THEN
            failed := one.id;
        END IF;
    END LOOP;
END $$;

-- A new job begins to wait for its parents; or it ends at once, because one of them had failed.
CREATE FUNCTION pgworkers.wait_for(job_id bigint, parents bigint[], on_failed text, failed bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pgworkers.dependency (parent_id, job_id, on_failed)
    SELECT p.id, wait_for.job_id, wait_for.on_failed FROM unnest(wait_for.parents) AS p (id);
    IF cardinality(wait_for.parents) > 0 THEN
        PERFORM pgworkers.tell('due:');  -- the leader links them
    END IF;
    IF wait_for.failed IS NOT NULL THEN
        UPDATE pgworkers.job j
           SET errors = ARRAY['cancelled: job #' || wait_for.failed || ', which it waited for, did not succeed']
         WHERE j.id = wait_for.job_id;
        PERFORM pgworkers.end_jobs(ARRAY[wait_for.job_id], 'cancelled');
    END IF;
END $$;

-- Waiting jobs begin. Whoever calls holds their row locks.
CREATE FUNCTION pgworkers.let_go(ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    freed record;
BEGIN
    FOR freed IN
        WITH moved AS (
            UPDATE pgworkers.job j
               SET state = 'ready', run_at = now()
             WHERE j.id = ANY (let_go.ids) AND j.state = 'scheduled' AND j.run_at = pgworkers.never()
               AND NOT EXISTS (SELECT FROM pgworkers.dependency d WHERE d.job_id = j.id)
            RETURNING j.queue, j.task
        )
        SELECT m.queue, array_agg(m.task::text) AS tasks, count(*) AS jobs FROM moved m GROUP BY m.queue
    LOOP
        PERFORM pgworkers.tell_ready(freed.queue, freed.tasks, freed.jobs);
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

-- The row that stands for a batch when it is locked; other batches may share it, which only makes a settle ask again.
CREATE FUNCTION pgworkers.batch_mutex(batch_id bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT 1024 + (hashint8(batch_id) & 1023)
$$;

-- Linked jobs ended; those that `succeeded` does not name have failed. Jobs that wait for them are released, or cancelled with
-- them, and their batches are complete if nothing of them lives. Called by every statement that moves rows to history.
-- `ran`: they were running, not waiting. Goes on level by level, up to `portion` links in all. If a level has more links than are left of
-- it, nothing of that level is settled: its parents go to `ended_parent`, and the leader goes on (renew_links, link_parents). It waits for no lock of a job: an enqueuer may hold one that
-- waits (on_conflict 'replace'). Such a job's links are given back to link_parents(), too.
CREATE FUNCTION pgworkers.ended(ids bigint[], batches bigint[], ran boolean, succeeded bigint[] DEFAULT NULL,
                                portion integer DEFAULT 1000) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failed bigint[] := ARRAY(SELECT f.id FROM unnest(ended.ids) AS f (id) WHERE f.id <> ALL (coalesce(ended.succeeded, '{}')));
    parents bigint[] := ended.ids;
    children bigint[];
    locked bigint[];
    doomed bigint[];
    one record;
    newest pgworkers.job_state;
BEGIN
    WHILE cardinality(parents) > 0 LOOP
        children := ARRAY(SELECT d.job_id FROM pgworkers.dependency d WHERE d.parent_id = ANY (parents) LIMIT portion + 1);
        EXIT WHEN cardinality(children) = 0;
        IF cardinality(children) > portion THEN
            INSERT INTO pgworkers.ended_parent AS e (id)
            SELECT p.id FROM unnest(parents) AS p (id)
             WHERE EXISTS (SELECT FROM pgworkers.dependency d WHERE d.parent_id = p.id)
             ORDER BY p.id
            ON CONFLICT (id) DO UPDATE SET done_to = excluded.done_to;
            PERFORM pgworkers.tell('due:');
            EXIT;
        END IF;
        portion := portion - cardinality(children);
        locked := ARRAY(SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (children) ORDER BY j.id FOR UPDATE SKIP LOCKED);
        UPDATE pgworkers.dependency d SET linked = false WHERE d.parent_id = ANY (parents) AND d.job_id <> ALL (locked);
        IF FOUND THEN
            PERFORM pgworkers.tell('due:');
        END IF;
        doomed := '{}';
        FOR one IN
            WITH gone AS (
                DELETE FROM pgworkers.job j
                 WHERE j.id = ANY (locked) AND j.state = 'scheduled' AND j.run_at = pgworkers.never()
                   AND EXISTS (SELECT FROM pgworkers.dependency d
                                WHERE d.job_id = j.id AND d.parent_id = ANY (parents) AND d.parent_id = ANY (failed)
                                  AND d.on_failed = 'cancel')
                RETURNING j.*
            )
            INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,
                                           max_attempts, max_crashes, created_at, run_at, deadline_at, timeout, memory,
                                           unique_key, concurrency_key, checkpoint, progress, errors, meta, batch_id, linked,
                                           enqueued_by)
            SELECT g.id, 'cancelled', 'cancelled', g.priority, g.queue, g.task, g.args, g.lease, g.attempt, g.crashes,
                   g.max_attempts, g.max_crashes, g.created_at, g.run_at, g.deadline_at, g.timeout, g.memory, g.unique_key,
                   g.concurrency_key, g.checkpoint, g.progress,
                   g.errors || ('cancelled: job #' || (SELECT min(d.parent_id) FROM pgworkers.dependency d
                                                        WHERE d.job_id = g.id AND d.parent_id = ANY (failed))
                                || ', which it waited for, did not succeed'), g.meta, g.batch_id, g.linked,
                   g.enqueued_by
              FROM gone g
            RETURNING id, batch_id
        LOOP
            ended.ids := ended.ids || one.id;
            ended.batches := ended.batches || one.batch_id;
            doomed := doomed || one.id;
            ended.ran := false;
            PERFORM pgworkers.tell(one.id::text, 'pgworkers_done');
        END LOOP;
        DELETE FROM pgworkers.dependency d
         WHERE d.parent_id = ANY (parents) AND d.job_id = ANY (locked)
           AND (d.on_failed <> 'wait' OR d.parent_id <> ALL (failed));
        PERFORM pgworkers.let_go(locked);
        failed := failed || doomed;
        parents := doomed;
    END LOOP;
    -- What the ended jobs themselves waited for. A link that another session holds is not waited for, or two ends could wait for each
    -- other: that session makes it new, and link_parents() deletes it.
    DELETE FROM pgworkers.dependency d
     USING (SELECT l.parent_id, l.job_id FROM pgworkers.dependency l WHERE l.job_id = ANY (ended.ids) FOR UPDATE SKIP LOCKED) f
     WHERE d.parent_id = f.parent_id AND d.job_id = f.job_id;

    FOR one IN
        SELECT b.id, bool_or(b.job_id = ANY (failed)) AS failed
          FROM unnest(ended.ids, ended.batches) AS b (job_id, id)
         WHERE b.id IS NOT NULL
         GROUP BY b.id
         ORDER BY b.id
    LOOP
        -- Whoever asks under the exclusive lock (settle) sees either our rows gone or us not yet here. See docs/adr/26.
        PERFORM FROM pgworkers.mutex m WHERE m.id = pgworkers.batch_mutex(one.id) FOR KEY SHARE;
        newest := pgworkers.newest(one.id);
        IF newest IS NULL THEN
            PERFORM pgworkers.complete(one.id, one.failed);
        ELSIF newest = 'running' OR NOT ended.ran THEN
            PERFORM pgworkers.tell('batch:' || one.id);  -- others may be ending the rest just now: look after commit
        END IF;
    END LOOP;
END $$;

-- Of parents with more followers than one statement may settle, set at most `most` links back to `linked = false`, in the order of the
-- followers, so that link_parents() settles them. Each link is touched once; a parent without another link is done. Answers how many.
CREATE FUNCTION pgworkers.renew_links(most integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one pgworkers.ended_parent;
    followers bigint[];
    renewed integer := 0;
BEGIN
    FOR one IN SELECT e.* FROM pgworkers.ended_parent e ORDER BY e.id LIMIT renew_links.most FOR UPDATE SKIP LOCKED LOOP
        EXIT WHEN renewed >= renew_links.most;
        followers := '{}';
        IF NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.id = one.id) THEN  -- else an operator requeued it: they wait for it again
            followers := ARRAY(SELECT d.job_id FROM pgworkers.dependency d
                                WHERE d.parent_id = one.id AND d.job_id > one.done_to
                                ORDER BY d.job_id LIMIT renew_links.most - renewed);
        END IF;
        IF cardinality(followers) = 0 THEN
            DELETE FROM pgworkers.ended_parent e WHERE e.id = one.id;
            CONTINUE;
        END IF;
        UPDATE pgworkers.dependency d SET linked = false WHERE d.parent_id = one.id AND d.job_id = ANY (followers);
        UPDATE pgworkers.ended_parent e SET done_to = followers[cardinality(followers)] WHERE e.id = one.id;
        renewed := renewed + cardinality(followers);
    END LOOP;
    RETURN renewed;
END $$;

-- The leader links new followers to their parents, at most `most` links: a parent that lives is marked, so that its end is heard;
-- one that has ended meanwhile has its effect now. What others hold just now is left for the next time. The walk begins at a random
-- place, so that links that are held cannot keep others waiting. Answers how many links were settled.
CREATE FUNCTION pgworkers.link_parents(most integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    children bigint[];
    parents bigint[];
    locked bigint[];
    start bigint;
    one record;
    settled integer := 0;
BEGIN
    PERFORM pgworkers.renew_links(link_parents.most);
    SELECT l.lowest + floor(random()::numeric * (l.highest - l.lowest + 1)) INTO start
      FROM (SELECT min(d.job_id)::numeric AS lowest, max(d.job_id)::numeric AS highest FROM pgworkers.dependency d WHERE NOT d.linked) l;
    SELECT array_agg(n.job_id), array_agg(n.parent_id) INTO children, parents
      FROM ((SELECT d.job_id, d.parent_id FROM pgworkers.dependency d
              WHERE NOT d.linked AND d.job_id >= start ORDER BY d.job_id LIMIT link_parents.most)
            UNION ALL
            (SELECT d.job_id, d.parent_id FROM pgworkers.dependency d
              WHERE NOT d.linked AND d.job_id < start ORDER BY d.job_id LIMIT link_parents.most)
            LIMIT link_parents.most) n;
    IF children IS NULL THEN
        RETURN 0;
    END IF;
    locked := ARRAY(SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (children || parents) ORDER BY j.id FOR UPDATE SKIP LOCKED);
    FOR one IN
        SELECT d.parent_id, d.job_id, d.on_failed, p.id IS NOT NULL AS lives,
               (SELECT h.state FROM pgworkers.history h WHERE h.id = d.parent_id ORDER BY h.finished_at DESC LIMIT 1) AS state,
               NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.id = d.job_id) AS childless
          FROM unnest(children, parents) AS n (job_id, parent_id)
          JOIN pgworkers.dependency d ON d.job_id = n.job_id AND d.parent_id = n.parent_id
          LEFT JOIN pgworkers.job p ON p.id = d.parent_id
         WHERE NOT d.linked
         ORDER BY d.job_id, d.parent_id
    LOOP
        IF one.childless THEN
            DELETE FROM pgworkers.dependency d WHERE d.parent_id = one.parent_id AND d.job_id = one.job_id;
        ELSIF one.job_id <> ALL (locked) OR (one.lives AND one.parent_id <> ALL (locked)) THEN
            CONTINUE;
        ELSIF one.lives THEN
            UPDATE pgworkers.job j SET linked = true WHERE j.id = one.parent_id AND NOT j.linked;
            UPDATE pgworkers.dependency d SET linked = true WHERE d.parent_id = one.parent_id AND d.job_id = one.job_id;
        ELSIF one.state = 'succeeded' OR one.on_failed = 'run' THEN
            DELETE FROM pgworkers.dependency d WHERE d.parent_id = one.parent_id AND d.job_id = one.job_id;
            PERFORM pgworkers.let_go(ARRAY[one.job_id]);
        ELSIF one.on_failed = 'wait' AND one.state IS NOT NULL THEN
            PERFORM FROM pgworkers.history h WHERE h.id = one.parent_id FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;  -- an operator requeues it just now
            UPDATE pgworkers.history h SET linked = true WHERE h.id = one.parent_id AND NOT h.linked;
            UPDATE pgworkers.dependency d SET linked = true WHERE d.parent_id = one.parent_id AND d.job_id = one.job_id;
        ELSE
            DELETE FROM pgworkers.dependency d WHERE d.parent_id = one.parent_id AND d.job_id = one.job_id;
            UPDATE pgworkers.job j
               SET errors = j.errors || ('cancelled: job #' || one.parent_id || ', which it waited for, '
                                         || CASE WHEN one.state IS NULL THEN 'is unknown' ELSE 'did not succeed' END)
             WHERE j.id = one.job_id AND j.state = 'scheduled' AND j.run_at = pgworkers.never();
            IF FOUND THEN
                PERFORM pgworkers.end_jobs(ARRAY[one.job_id], 'cancelled',  -- of more followers: the next time
                                           portion => greatest(3, link_parents.most / cardinality(children)));
            END IF;
        END IF;
        settled := settled + 1;
    END LOOP;
    RETURN settled;
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
    PERFORM FROM pgworkers.job j WHERE j.id = found_batch.then_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT FROM pgworkers.job j WHERE j.id = found_batch.then_id) THEN
        RETURN false;  -- an enqueuer holds it just now; the sweep of batches comes back to it
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
            PERFORM pgworkers.end_jobs(ARRAY[found_batch.then_id], 'cancelled');
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
    PERFORM FROM pgworkers.mutex m WHERE m.id = pgworkers.batch_mutex(settle.batch_id) FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
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
    -- Called for each row of `stat`: names that say where they are from cost less than a search_path of its own.
    SELECT ARRAY(SELECT coalesce(u.x, 0) OPERATOR(pg_catalog.+) coalesce(u.y, 0)
                   FROM ROWS FROM (pg_catalog.unnest(a), pg_catalog.unnest(b)) WITH ORDINALITY AS u (x, y, n) ORDER BY u.n)
$$;
CREATE AGGREGATE pgworkers.merged(bigint[]) (SFUNC = pgworkers.add, STYPE = bigint[], INITCOND = '{}');

-- The value below which a share `q` of a histogram lies, in seconds, to the middle of its bucket: within 10 percent.
CREATE FUNCTION pgworkers.percentile(histogram bigint[], q double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
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
