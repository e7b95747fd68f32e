-- Limits: how many workers a queue has over all hosts, and how many jobs of a task or of a key run at once.

-- == Concurrency ==================================================================================================
-- A limit is a number of slots. What the app says is in `task`; what an operator says is in `concurrency` and wins. The
-- slots in use are counted from running rows, so a slot is free when its lease is gone and none can leak.

ALTER TABLE pgworkers.task
    ADD COLUMN concurrency         integer CHECK (concurrency >= 1),
    ADD COLUMN concurrency_per_key integer CHECK (concurrency_per_key >= 1);
CREATE INDEX task_limited ON pgworkers.task (name) WHERE concurrency IS NOT NULL;

CREATE TABLE pgworkers.concurrency (
    kind       text        NOT NULL CHECK (kind IN ('task', 'key')),
    name       text        NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 1000),
    slots      integer     NOT NULL CHECK (slots >= 0),  -- 0: nothing of it starts
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);

-- A lane: the ready jobs of one queue and task with the same key, so that one look decides for all of them. Its number has nothing to do
-- with the order of keys: claims begin at a random one and so no lane is always the last.
CREATE FUNCTION pgworkers.lane(key text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
-- An index is made of it: everybody must compute the same, whatever their search_path.
SELECT ('x' OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.md5(coalesce($1, '')), 1, 16))::bit(64)::bigint
$$;
-- By task before lane: a task that is full, or that a host does not know, is passed in one probe, however many lanes it has.
CREATE INDEX job_lane ON pgworkers.job (queue, task, pgworkers.lane(concurrency_key), priority DESC, id)
    WHERE state = 'ready' AND (gated OR concurrency_key IS NOT NULL);
-- What runs behind a limit. Not `state = 'running'`: docs/adr/0103. In coalesce(), so that of these two and job_running only one serves a
-- count: the planner believes that nothing runs, and then any of them seems as good to it.
CREATE INDEX job_of_task ON pgworkers.job (task, claimed_at)
    WHERE coalesce(host IS NOT NULL AND (gated OR concurrency_key IS NOT NULL), false);
CREATE INDEX job_of_key ON pgworkers.job (concurrency_key, claimed_at)
    WHERE coalesce(host IS NOT NULL AND concurrency_key IS NOT NULL, false);

-- How many more jobs of a task, or of a key, may run; NULL: no limit. A key without any limit stands for one at a time. They have no
-- search_path of their own and return a set, so that they become part of the statement that calls them: every name says where it is from.
CREATE FUNCTION pgworkers.room_of_task(task text) RETURNS TABLE (room bigint)
LANGUAGE sql STABLE ROWS 1 AS $$
SELECT CASE WHEN l.slots IS NOT NULL THEN l.slots OPERATOR(pg_catalog.-) (
            SELECT pg_catalog.count(*)
              FROM (SELECT FROM pgworkers.job j
                     WHERE j.task OPERATOR(pg_catalog.=) $1
                       AND coalesce(j.host IS NOT NULL AND (j.gated OR j.concurrency_key IS NOT NULL), false)
                     ORDER BY j.claimed_at LIMIT l.slots) used) END
  FROM (SELECT coalesce((SELECT c.slots FROM pgworkers.concurrency c
                          WHERE c.kind OPERATOR(pg_catalog.=) 'task' AND c.name OPERATOR(pg_catalog.=) $1),
                        (SELECT t.concurrency FROM pgworkers.task t WHERE t.name OPERATOR(pg_catalog.=) $1)) AS slots) l
$$;
CREATE FUNCTION pgworkers.room_of_key(task text, key text) RETURNS TABLE (room bigint)
LANGUAGE sql STABLE ROWS 1 AS $$
SELECT CASE WHEN $2 IS NOT NULL THEN l.slots OPERATOR(pg_catalog.-) (
            SELECT pg_catalog.count(*)
              FROM (SELECT FROM pgworkers.job j
                     WHERE j.concurrency_key OPERATOR(pg_catalog.=) $2
                       AND coalesce(j.host IS NOT NULL AND j.concurrency_key IS NOT NULL, false)
                     ORDER BY j.claimed_at LIMIT l.slots) used) END
  FROM (SELECT coalesce((SELECT c.slots FROM pgworkers.concurrency c
                          WHERE c.kind OPERATOR(pg_catalog.=) 'key' AND c.name OPERATOR(pg_catalog.=) $2),
                        (SELECT t.concurrency_per_key FROM pgworkers.task t WHERE t.name OPERATOR(pg_catalog.=) $1), 1) AS slots) l
$$;

-- The row that stands for a limit when it is locked; others may share it.
CREATE FUNCTION pgworkers.limit_mutex(kind text, name text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT (hashtextextended(kind || ' ' || name, 0) & 1023)::integer
$$;

-- Which of the jobs that stand behind a limit may be claimed now: up to `counts` of each queue, locked. The caller claims
-- them, or some of them, in the same transaction.
-- Two claims at once cannot both take the last slot: the limits of the chosen jobs are locked (rows of `mutex`) until the end of
-- the transaction, and the slots are counted after that, in a snapshot that sees what the one before committed. (That is
-- why this is a function and volatile: inside one plain statement the snapshot would be older than the lock.) A limit that
-- another claim holds is not waited for: its jobs are left to the next claim, which is notified. So nothing that has no
-- limit, or another one, waits.
-- Of each queue and task up to `look` lanes with room (or as many as jobs are wanted, if that is more) are compared by priority and age;
-- when there are more, they take turns. To find them a call passes fifty times as many lanes without room, over all queues and tasks
-- together. A task without room, or that is not among `tasks`, is passed whole.
CREATE FUNCTION pgworkers.admit(queues text[], counts integer[], tasks text[], oldest boolean, look integer)
RETURNS TABLE (at tid, queue text, priority integer, id bigint, run_at timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    start  bigint := ((random() - 0.5) * 1.8e19)::bigint;
    names  text[];     -- of the chosen jobs, in the order in which they should run: their tasks,
    keys   text[];     -- their keys,
    ids    bigint[];
    fit    bigint[];
    mine   integer[];  -- rows of mutex
BEGIN
    WITH RECURSIVE waits AS (
        -- The tasks that have waiting jobs, of each queue. From a task that waits to the next one that is known: whatever unknown names
        -- lie between two known ones are passed by one probe.
        SELECT w.queue, w.count, NULL::text AS task, (SELECT min(k.name) FROM unnest(admit.tasks) AS k (name)) AS next
          FROM unnest(admit.queues, admit.counts) AS w (queue, count)
        UNION ALL
        SELECT w.queue, w.count, j.task, (SELECT min(k.name) FROM unnest(admit.tasks) AS k (name) WHERE k.name > j.task)
          FROM waits w
         CROSS JOIN LATERAL (
               SELECT j.task::text AS task FROM pgworkers.job j
                WHERE j.queue = w.queue AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL) AND j.task >= w.next
                ORDER BY j.task LIMIT 1) j
    ),
    open_tasks AS MATERIALIZED (
        SELECT w.queue, w.count, w.task, r.room, greatest(admit.look, 50 * admit.look / count(*) OVER ()) AS most
          FROM waits w
         CROSS JOIN LATERAL pgworkers.room_of_task(w.task) r
         WHERE w.task = ANY (admit.tasks) AND (r.room IS NULL OR r.room > 0)
    ),
    lanes AS (
        SELECT t.queue, t.count, t.task, t.room, t.most, start AS lane, false AS wrapped, 0::bigint AS room_of_key, 0 AS seen, 0 AS open
          FROM open_tasks t
        UNION ALL
        SELECT l.queue, l.count, l.task, l.room, l.most, n.lane, n.wrapped, r.room, l.seen + 1,
               l.open + CASE WHEN r.room <= 0 THEN 0 ELSE 1 END
          FROM lanes l
         CROSS JOIN LATERAL (
               SELECT * FROM (
                   (SELECT pgworkers.lane(j.concurrency_key) AS lane, l.wrapped, j.concurrency_key AS key
                      FROM pgworkers.job j
                     WHERE j.queue = l.queue AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL)
                       AND j.task = l.task AND pgworkers.lane(j.concurrency_key) > l.lane
                       AND pgworkers.lane(j.concurrency_key) <= CASE WHEN l.wrapped THEN start ELSE 9223372036854775807 END
                     ORDER BY pgworkers.lane(j.concurrency_key), j.priority DESC, j.id LIMIT 1)
                   UNION ALL
                   (SELECT pgworkers.lane(j.concurrency_key), true, j.concurrency_key
                      FROM pgworkers.job j
                     WHERE NOT l.wrapped AND j.queue = l.queue AND j.state = 'ready'
                       AND (j.gated OR j.concurrency_key IS NOT NULL)
                       AND j.task = l.task AND pgworkers.lane(j.concurrency_key) <= start
                     ORDER BY pgworkers.lane(j.concurrency_key), j.priority DESC, j.id LIMIT 1)
                   ) next
                LIMIT 1) n
         CROSS JOIN LATERAL pgworkers.room_of_key(l.task, n.key) r
         WHERE l.seen < l.most AND l.open < greatest(admit.look, l.count)
    ),
    waiting AS (
        SELECT l.queue, l.count, l.room, l.task, j.key, j.id, j.rank,
               row_number() OVER (PARTITION BY l.task ORDER BY j.rank, j.id) AS nth_of_task
          FROM lanes l
         CROSS JOIN LATERAL (
               SELECT j.id, j.concurrency_key AS key, CASE WHEN admit.oldest THEN 0 ELSE -j.priority::bigint END AS rank
                 FROM pgworkers.job j
                WHERE j.queue = l.queue AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL)
                  AND j.task = l.task AND pgworkers.lane(j.concurrency_key) = l.lane
                  AND (j.expires_at IS NULL OR j.expires_at > now())
                ORDER BY pgworkers.lane(j.concurrency_key), j.priority DESC, j.id
                LIMIT greatest(least(l.room, l.room_of_key, l.count), 0)) j
         WHERE l.seen > 0
    ),
    chosen AS (
        SELECT w.count, w.task, w.key, w.id, row_number() OVER (PARTITION BY w.queue ORDER BY w.rank, w.id) AS nth
          FROM waiting w WHERE w.room IS NULL OR w.nth_of_task <= w.room
    )
    SELECT array_agg(c.task ORDER BY c.nth), array_agg(c.key ORDER BY c.nth), array_agg(c.id ORDER BY c.nth)
      INTO names, keys, ids
      FROM chosen c WHERE c.nth <= c.count;
    IF ids IS NULL THEN
        RETURN;
    END IF;

    mine := ARRAY(
        SELECT m.id FROM pgworkers.mutex m
         WHERE m.id = ANY (ARRAY(SELECT pgworkers.limit_mutex('task', c.task) FROM unnest(names) AS c (task)
                                 UNION SELECT pgworkers.limit_mutex('key', c.key) FROM unnest(keys) AS c (key)
                                        WHERE c.key IS NOT NULL))
         ORDER BY m.id FOR UPDATE SKIP LOCKED);

    WITH chosen AS MATERIALIZED (
        SELECT c.task, c.key, c.id, c.nth FROM unnest(names, keys, ids) WITH ORDINALITY AS c (task, key, id, nth)
         WHERE pgworkers.limit_mutex('task', c.task) = ANY (mine)
           AND (c.key IS NULL OR pgworkers.limit_mutex('key', c.key) = ANY (mine))
    ),
    of_task AS MATERIALIZED (
        SELECT t.task, r.room FROM (SELECT DISTINCT c.task FROM chosen c) t CROSS JOIN LATERAL pgworkers.room_of_task(t.task) r
    ),
    of_key AS MATERIALIZED (
        SELECT k.task, k.key, r.room
          FROM (SELECT DISTINCT c.task, c.key FROM chosen c WHERE c.key IS NOT NULL) k
         CROSS JOIN LATERAL pgworkers.room_of_key(k.task, k.key) r
    )
    SELECT array_agg(c.id ORDER BY c.nth) INTO fit
      FROM (SELECT c.id, c.nth, t.room AS of_task, k.room AS of_key,
                   row_number() OVER (PARTITION BY c.task ORDER BY c.nth) AS nth_of_task,
                   row_number() OVER (PARTITION BY c.key ORDER BY c.nth) AS nth_of_key
              FROM chosen c JOIN of_task t ON t.task = c.task
              LEFT JOIN of_key k ON k.task = c.task AND k.key = c.key) c
     WHERE (c.of_task IS NULL OR c.nth_of_task <= c.of_task) AND (c.of_key IS NULL OR c.nth_of_key <= c.of_key);
    IF cardinality(fit) IS DISTINCT FROM cardinality(ids) THEN
        -- Others were faster or hold a limit, or two lanes share one: what stands behind them is found by another claim, at once.
        PERFORM pgworkers.tell('ready:' || q.name) FROM unnest(admit.queues) AS q (name);
    END IF;
    RETURN QUERY
    SELECT locked.at, locked.queue::text, locked.priority::integer, f.id, locked.run_at::timestamptz
      FROM unnest(fit) AS f (id)
     CROSS JOIN LATERAL (
           SELECT j.ctid AS at, j.queue, j.priority, j.run_at
             FROM pgworkers.job j
            WHERE j.id = f.id AND j.state = 'ready'
              FOR UPDATE SKIP LOCKED) locked;
END $$;

-- What a claim takes where there are limits: of the free jobs that it has found and locked, and of those that admit() lets pass, the
-- first `counts` of each queue. A job of a limited task that still stands among the free ones is moved behind its limit
-- instead, and claimed by the next claim.
CREATE FUNCTION pgworkers.choose(free tid[], queues text[], counts integer[], tasks text[], gates boolean, look integer)
RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    name   text;
    passed tid[];
BEGIN
    FOR name IN
        UPDATE pgworkers.job j SET gated = true
         WHERE j.ctid = ANY (choose.free) AND j.state = 'ready'
           AND j.task = ANY (ARRAY(SELECT t.name FROM pgworkers.task t WHERE t.concurrency IS NOT NULL
                                   UNION ALL SELECT c.name FROM pgworkers.concurrency c WHERE c.kind = 'task'))
        RETURNING j.queue
    LOOP
        PERFORM pgworkers.tell('ready:' || name);
    END LOOP;
    IF choose.gates THEN
        SELECT array_agg(a.at) INTO passed
          FROM (SELECT array_agg(w.queue) AS queues, array_agg(w.count) AS counts
                  FROM unnest(choose.queues, choose.counts) AS w (queue, count)
                 WHERE w.count > 0 AND NOT EXISTS (SELECT FROM pgworkers.queue q
                                                    WHERE q.name = w.queue AND (q.paused OR q.throttled_until > now()))) open
         CROSS JOIN LATERAL pgworkers.admit(open.queues, open.counts, choose.tasks, false, choose.look) a
         WHERE open.queues IS NOT NULL;
    END IF;
    RETURN ARRAY(
        SELECT c.at
          FROM (SELECT j.ctid AS at, j.queue, row_number() OVER (PARTITION BY j.queue ORDER BY j.priority DESC, j.id) AS nth
                  FROM pgworkers.job j
                 WHERE j.ctid = ANY (choose.free || passed) AND j.state = 'ready') c
          JOIN unnest(choose.queues, choose.counts) AS w (queue, count) ON w.queue = c.queue
         WHERE c.nth <= w.count);
END $$;

-- == Workers ======================================================================================================
ALTER TABLE pgworkers.queue
    ADD COLUMN declared_cluster integer CHECK (declared_cluster >= 1),  -- cluster_workers, as the last deploy said
    ADD CONSTRAINT queue_cluster_fits CHECK (cluster_workers >= 0);

-- However a row of `queue` is changed, its hosts hear of it.
CREATE FUNCTION pgworkers.tell_queue() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgworkers.tell('queue:' || NEW.name);
    RETURN NULL;
END $$;
CREATE TRIGGER queue_changed AFTER UPDATE ON pgworkers.queue
FOR EACH ROW EXECUTE FUNCTION pgworkers.tell_queue();

-- The share of each host in the workers of a queue that are counted over the whole cluster.
CREATE TABLE pgworkers.slots (
    queue    text        NOT NULL,
    host     uuid        NOT NULL REFERENCES pgworkers.host (id) ON DELETE CASCADE,
    workers  integer     NOT NULL CHECK (workers >= 0),  -- granted: as many may run there
    taken    integer     NOT NULL CHECK (taken >= 0),    -- acknowledged: so many may be running there, whatever is granted
    taken_at timestamptz NOT NULL DEFAULT now(),         -- and after a lease without acknowledgement none
    PRIMARY KEY (queue, host)
) WITH (fillfactor = 50);
CREATE INDEX slots_host ON pgworkers.slots (host);

-- Grant workers of a queue to hosts: `wanted`, as far as `total` allows. A host that must give up is told at once; what it
-- has counts until it has acknowledged that it is gone, or its lease is over. So the sum of what may run never exceeds
-- the total, whoever asks, in whatever order. `clock`: see `gaps`. Answers how many grants changed.
CREATE FUNCTION pgworkers.grant_slots(queue text, total integer, hosts uuid[], wanted integer[], clock timestamptz)
RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    free    integer;
    one     record;
    more    integer;
    changed integer;
BEGIN
    PERFORM FROM pgworkers.queue q WHERE q.name = grant_slots.queue FOR UPDATE;
    PERFORM FROM pgworkers.slots s WHERE s.queue = grant_slots.queue ORDER BY s.host FOR UPDATE;
    DELETE FROM pgworkers.slots s USING pgworkers.host h
     WHERE s.queue = grant_slots.queue AND h.id = s.host AND s.taken_at < least(now(), clock) - h.lease;
    UPDATE pgworkers.slots s SET workers = w.workers
      FROM unnest(grant_slots.hosts, grant_slots.wanted) AS w (host, workers)
     WHERE s.queue = grant_slots.queue AND s.host = w.host AND w.workers < s.workers;
    GET DIAGNOSTICS changed = ROW_COUNT;
    SELECT grant_slots.total - coalesce(sum(greatest(s.workers, s.taken)), 0) INTO free
      FROM pgworkers.slots s WHERE s.queue = grant_slots.queue;
    FOR one IN
        SELECT w.host, w.workers AS wanted, coalesce(s.workers, 0) AS granted, coalesce(s.taken, 0) AS taken
          FROM unnest(grant_slots.hosts, grant_slots.wanted) WITH ORDINALITY AS w (host, workers, nth)
          JOIN pgworkers.host h ON h.id = w.host
          LEFT JOIN pgworkers.slots s ON s.queue = grant_slots.queue AND s.host = w.host
         WHERE s.host IS NULL OR w.workers > s.workers
         ORDER BY w.nth
    LOOP
        -- What it has not yet let go it may keep; beyond that it takes from what is free.
        more := least(one.wanted, greatest(one.granted, one.taken) + greatest(free, 0));
        free := free - greatest(more - greatest(one.granted, one.taken), 0);
        INSERT INTO pgworkers.slots AS s (queue, host, workers, taken)
        VALUES (grant_slots.queue, one.host, more, one.taken)
        ON CONFLICT (queue, host) DO UPDATE SET workers = excluded.workers WHERE s.workers <> excluded.workers;
        IF FOUND THEN
            changed := changed + 1;
        END IF;
    END LOOP;
    IF changed > 0 THEN
        PERFORM pgworkers.tell('queue:' || grant_slots.queue);
    END IF;
    RETURN changed;
END $$;

-- == Throttle =====================================================================================================
-- Let a queue cool down: nothing is claimed from it until then. The number of throttles in a row makes the cool-down
-- longer, min(base x growth^n, most), and is worn off by one for each `grace` without one. Throttles while the queue cools down
-- come from jobs that had begun before; they count as the same one, and a longer cool-down is never shortened.
CREATE FUNCTION pgworkers.throttle(name text, after double precision, base double precision, growth double precision,
                                   most double precision, grace double precision) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now   timestamptz := clock_timestamp();
    known pgworkers.queue;
    worn  integer;
    nth   integer;
    long  double precision;
BEGIN
    SELECT q.* INTO known FROM pgworkers.queue q WHERE q.name = throttle.name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF known.throttled_until > now THEN
        nth := greatest(known.throttles, 1);
        long := coalesce(throttle.after, 0);
    ELSE
        worn := least(extract(epoch FROM now - known.throttled_until) / greatest(throttle.grace, 0.001), 1000);
        nth := greatest(known.throttles - coalesce(worn, 0), 0) + 1;
        long := coalesce(throttle.after, least(throttle.base * throttle.growth ^ least(nth - 1, 60), throttle.most));
    END IF;
    UPDATE pgworkers.queue q
       SET throttled_until = greatest(q.throttled_until, now + make_interval(secs => long)), throttles = nth,
           updated_at = now
     WHERE q.name = throttle.name;
    RETURN true;
END $$;

-- == Rows that no claim can take ==================================================================================
-- A claim takes many rows in one statement, so one row whose data makes the statement fail would stop all of them. The domains
-- of 0001 refuse such data. This is for rows that are there all the same.

-- The least number of digits that a JSON value has when it is printed, of its long numbers alone: a tenth of them or more. A number takes a few
-- bytes and can have 131,072 digits, so printing a value to learn its size may take longer than a statement may.
CREATE FUNCTION pgworkers.least_digits(value jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT 90000 * jsonb_array_length(jsonb_path_query_array(value, 'strict $.** ? (@ >= 1e100000 || @ <= -1e100000)'))::bigint
     + 9000 * jsonb_array_length(jsonb_path_query_array(value, 'strict $.** ? (@ >= 1e10000 || @ <= -1e10000
                                                         || (@ != 0 && @ < 1e-10000 && @ > -1e-10000))'))
     + 900 * jsonb_array_length(jsonb_path_query_array(value, 'strict $.** ? (@ >= 1e1000 || @ <= -1e1000
                                                        || (@ != 0 && @ < 1e-1000 && @ > -1e-1000))'))
$$;

-- End the ready jobs that take too long to print: dead, verdict unfit. They are found without printing them, and without waiting for a claim
-- that still tries to. What they hold is dropped: readers of history could not print it either. Up to `look` rows of each queue and
-- kind, by the indexes job_ready and job_lane.
CREATE FUNCTION pgworkers.set_loud_aside(queues text[], tasks text[], look integer)
RETURNS TABLE (id bigint, lease integer, queue text, task text, attempt integer, max_attempts integer, reason text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    fault constant text := 'no worker can have it: its arguments, checkpoint or meta are larger than 4MB when they are printed';
    one   record;
BEGIN
    FOR one IN
        SELECT c.*
          FROM unnest(set_loud_aside.queues) AS w (queue)
         CROSS JOIN LATERAL (
               (SELECT j.* FROM pgworkers.job j
                 WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
                   AND j.task = ANY (set_loud_aside.tasks)
                 ORDER BY j.priority DESC, j.id LIMIT set_loud_aside.look)
                UNION ALL
               (SELECT j.* FROM pgworkers.job j
                 WHERE j.queue = w.queue AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL)
                   AND j.task = ANY (set_loud_aside.tasks)
                 ORDER BY j.task LIMIT set_loud_aside.look)) c
         WHERE pgworkers.least_digits(c.args) > 4194304 OR pgworkers.least_digits(c.checkpoint) > 4194304
            OR pgworkers.least_digits(c.meta) > 4194304
    LOOP
        UPDATE pgworkers.job j SET args = '{}', meta = NULL, checkpoint = NULL, progress = NULL
         WHERE j.id = one.id AND j.state = 'ready';
        CONTINUE WHEN NOT FOUND;
        PERFORM pgworkers.end_jobs(ARRAY[one.id], 'unfit', fault);
        RETURN QUERY SELECT one.id, one.lease, one.queue::text, one.task::text, one.attempt::integer,
                            one.max_attempts::integer, fault;
    END LOOP;
END $$;

-- Find the ready jobs that no claim can take and end them: dead, verdict unfit, with the reason. The rows that a claim of these queues
-- would look at are claimed for a trial in a subtransaction that is rolled back. When that fails they are halved until the bad row is
-- alone. Errors that say nothing about a row are raised again, and no job is ended: locks, resources, damage (class XX), a foreign key
-- (none of ours is on `job`), code of the user's in a trigger. Of each queue and task of a bad row, a new job
-- without any data is claimed for a trial, too. If that fails, the cause is not the data of the row, and its job is not ended.
-- Indexes job_ready and job_lane, up to `look` rows each of each queue.
CREATE FUNCTION pgworkers.set_aside(queues text[], tasks text[], look integer)
RETURNS TABLE (id bigint, lease integer, queue text, task text, attempt integer, max_attempts integer, reason text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    ids     bigint[];
    lows    integer[] := '{1}';  -- the pieces of `ids` that are still to be tried
    highs   integer[];
    low     integer;
    high    integer;
    middle  integer;
    printed bigint;
    context text;
    code    text;
    fault   text;
    bad     bigint[] := '{}';
    faults  text[] := '{}';
    one     record;
    probe   bigint;
    spared  bigint[] := '{}';
BEGIN
    SELECT array_agg(c.id), ARRAY[count(*)::integer] INTO ids, highs
      FROM unnest(set_aside.queues) AS w (queue)
     CROSS JOIN LATERAL (
           SELECT free.id
             FROM (SELECT j.id FROM pgworkers.job j
                    WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.gated AND j.concurrency_key IS NULL
                      AND j.task = ANY (set_aside.tasks)
                    ORDER BY j.priority DESC, j.id LIMIT set_aside.look
                      FOR UPDATE SKIP LOCKED) free
            UNION ALL
           SELECT held.id
             FROM (SELECT j.id FROM pgworkers.job j
                    WHERE j.queue = w.queue AND j.state = 'ready' AND (j.gated OR j.concurrency_key IS NOT NULL)
                      AND j.task = ANY (set_aside.tasks)
                    ORDER BY j.task LIMIT set_aside.look
                      FOR UPDATE SKIP LOCKED) held) c;
    WHILE ids IS NOT NULL AND cardinality(lows) > 0 LOOP
        low := lows[cardinality(lows)];
        high := highs[cardinality(highs)];
        lows := lows[:cardinality(lows) - 1];
        highs := highs[:cardinality(highs) - 1];
        BEGIN
            -- As claim.sql does, with all that it answers.
            WITH claimed AS (
                UPDATE pgworkers.job j
                   SET state = 'running', host = '00000000-0000-0000-0000-000000000000', lease = j.lease + 1,
                       attempt = j.attempt + 1, claimed_at = now()
                 WHERE j.id = ANY (ids[low:high]) AND j.state = 'ready'
                RETURNING j.args::text, date_part('epoch', j.timeout), date_part('epoch', j.deadline_at - now()),
                          j.checkpoint::text, j.meta::text, j.errors::text, date_part('epoch', now() - j.run_at),
                          extract(epoch FROM j.deadline_at)::double precision
            )
            SELECT max(octet_length(c::text)) INTO printed FROM claimed c;
            RAISE EXCEPTION 'it can be claimed' USING ERRCODE = 'PW000';
        EXCEPTION
            WHEN SQLSTATE 'PW000' THEN
                NULL;
            WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
                code := SQLSTATE;
                fault := SQLERRM;
                -- Each PL/pgSQL function adds a line to the context, and this one is the first. The word after PL/pgSQL is translated.
                IF left(code, 2) NOT IN ('22', '23', '54') OR code = '23503'
                   OR array_length(string_to_array(context, 'PL/pgSQL'), 1) > 2 THEN
                    RAISE;
                END IF;
                IF low < high THEN
                    middle := (low + high) / 2;
                    lows := lows || (middle + 1) || low;
                    highs := highs || high || middle;
                    CONTINUE;
                END IF;
                bad := bad || ids[low];
                faults := faults || fault;
        END;
    END LOOP;
    FOR one IN
        SELECT j.queue, j.task, array_agg(j.id) AS ids FROM pgworkers.job j WHERE j.id = ANY (bad) GROUP BY j.queue, j.task
    LOOP
        BEGIN
            INSERT INTO pgworkers.job AS j (queue, task) VALUES (one.queue, one.task) RETURNING j.id INTO probe;
            UPDATE pgworkers.job j
               SET state = 'running', host = '00000000-0000-0000-0000-000000000000', lease = j.lease + 1,
                   attempt = j.attempt + 1, claimed_at = now()
             WHERE j.id = probe;
            RAISE EXCEPTION 'it can be claimed' USING ERRCODE = 'PW000';
        EXCEPTION
            WHEN SQLSTATE 'PW000' THEN
                NULL;
            WHEN OTHERS THEN
                spared := spared || one.ids;
        END;
    END LOOP;
    IF cardinality(bad) > 0 AND cardinality(spared) = cardinality(bad) THEN
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = fault,
            DETAIL = format('%s of %s jobs cannot be claimed, and neither can a job without any data. The cause is not their data. '
                            'None was ended.', cardinality(bad), cardinality(ids));
    END IF;
    FOR nth IN 1 .. cardinality(bad) LOOP
        CONTINUE WHEN bad[nth] = ANY (spared);
        fault := 'no worker can have it: ' || faults[nth];
        RETURN QUERY SELECT j.id, j.lease, j.queue::text, j.task::text, j.attempt::integer, j.max_attempts::integer, fault
                       FROM pgworkers.job j WHERE j.id = bad[nth];
        BEGIN
            PERFORM pgworkers.end_jobs(bad[nth:nth], 'unfit', fault);
        EXCEPTION WHEN OTHERS THEN
            -- Not even history takes it: what it holds is dropped.
            UPDATE pgworkers.job j
               SET args = '{}', meta = NULL, checkpoint = NULL, progress = NULL, errors = '{}', concurrency_key = NULL,
                   run_at = now(), expires_at = NULL, deadline_at = NULL, timeout = NULL, memory = NULL
             WHERE j.id = bad[nth];
            PERFORM pgworkers.end_jobs(bad[nth:nth], 'unfit', fault);
        END;
    END LOOP;
END $$;
