-- serves: 0001
-- The whole storage of pgworkers, in one transaction. It is written for the schema name `pgworkers`; `postgres/migrate.py` puts the
-- configured name in its place, and has created the schema and its table `migration`.
--
--   Part 1   Types
--   Part 2   Tables:     2.1 jobs · 2.2 declarations and tuning · 2.3 hosts · 2.4 rates and limits · 2.5 records
--   Part 3   Indexes, each with its reason
--   Part 4   Functions:  4.1 notify · 4.2 enqueue · 4.3 claim jobs behind limits · 4.4 jobs that no claim can take · 4.5 end jobs
--                        4.6 dependencies and batches · 4.7 operators · 4.8 hosts and queues · 4.9 schedules · 4.10 partitions
--                        4.11 statistics and autoscaling
--   Part 5   Views for people
--   Part 6   The first partitions
--
-- The roles and their rights are in roles.sql: creating roles takes a right that a migration does not have.


-- ===================================================================================================================================
-- Part 1. Types
-- ===================================================================================================================================

-- No row of a table is 'claimed'. The view `jobs` shows it for a running row that no worker is known to have.
CREATE TYPE pgworkers.job_state AS ENUM ('scheduled', 'ready', 'claimed', 'running', 'succeeded', 'dead', 'cancelled');

-- Limits on values are written as domains. A domain is checked when a value is written. A CHECK of a table is parsed again by each
-- statement that writes a row, whichever column it changes (docs/adr/06).
-- pgworkers/bounds.py has the same numbers for the Python API, and tests/law compares them.
CREATE DOMAIN pgworkers.queue_name AS text
    CONSTRAINT job_names_fit CHECK (octet_length(VALUE) BETWEEN 1 AND 200)
    CONSTRAINT job_names_are_plain CHECK (VALUE !~ '^[\s-]|\s$|[,:\u0001-\u001f\u007f-\u009f]');
CREATE DOMAIN pgworkers.login_name AS text CONSTRAINT job_login_fits CHECK (octet_length(VALUE) BETWEEN 1 AND 63);
CREATE DOMAIN pgworkers.task_name AS text
    CONSTRAINT job_names_fit CHECK (octet_length(VALUE) BETWEEN 1 AND 200)
    CONSTRAINT job_names_are_plain CHECK (VALUE !~ '^[\s-]|\s$|[,:\u0001-\u001f\u007f-\u009f]');
CREATE DOMAIN pgworkers.unique_key_text AS text CONSTRAINT job_unique_fits CHECK (octet_length(VALUE) BETWEEN 1 AND 1000);
CREATE DOMAIN pgworkers.concurrency_key_text AS text
    CONSTRAINT job_concurrency_key_fits CHECK (octet_length(VALUE) BETWEEN 1 AND 1000);
CREATE DOMAIN pgworkers.idempotency_key_text AS text
    CONSTRAINT idempotency_key_fits CHECK (octet_length(VALUE) BETWEEN 1 AND 1000);
CREATE DOMAIN pgworkers.job_priority AS integer CONSTRAINT job_priority_fits CHECK (VALUE >= -2147483647);
CREATE DOMAIN pgworkers.attempt_text AS text CONSTRAINT attempt_texts_fit CHECK (octet_length(VALUE) <= 1048576);
CREATE DOMAIN pgworkers.error_lines AS text[]
    CONSTRAINT job_errors_fit CHECK (cardinality(VALUE) = 0 OR pg_column_size(VALUE) <= 65536 AND array_ndims(VALUE) = 1
                                     AND array_position(VALUE, NULL) IS NULL);
CREATE DOMAIN pgworkers.attempt_limit AS integer CONSTRAINT job_attempts_fit CHECK (VALUE BETWEEN 1 AND 10001);
CREATE DOMAIN pgworkers.attempt_count AS integer CONSTRAINT job_attempts_fit CHECK (VALUE >= 0);
-- Finite, and in a year that every client can represent. The upper end is far_future(), below.
CREATE DOMAIN pgworkers.bounded_timestamp AS timestamptz
    CONSTRAINT job_timestamps_fit CHECK (VALUE BETWEEN '1970-01-01 00:00:00+00' AND '9999-01-01 00:00:00+00');
CREATE DOMAIN pgworkers.job_timeout AS interval
    CONSTRAINT job_timeout_fits CHECK (VALUE > '0' AND VALUE <= '36500 days');
CREATE DOMAIN pgworkers.seconds AS double precision
    CONSTRAINT seconds_fit CHECK (VALUE BETWEEN 0 AND 3153600000);  -- refuses NaN too, which is greater than any number
CREATE DOMAIN pgworkers.job_memory AS bigint
    CONSTRAINT job_memory_fits CHECK (VALUE BETWEEN 1048576 AND 1152921504606846975);

-- The size of JSON is the length of its text: a number of twelve bytes can have 131,072 digits, and readers get the text. The text of
-- a value of up to 256 bytes is not computed. Such a value prints less than 2.4 MB: a number with its entry takes at least 16 bytes
-- and prints at most 147,457 characters, and each other byte prints at most six. `VALUE #> '{}'` is the same value, never compressed.
-- An INSERT may take a compressed value from another table, and its pg_column_size() does not bound what it prints.
CREATE DOMAIN pgworkers.job_result AS jsonb
    CONSTRAINT job_result_fits CHECK (pg_column_size(VALUE #> '{}') <= 256 OR pg_column_size(VALUE) <= 67108864 AND octet_length(VALUE::text) <= 67108864);
CREATE DOMAIN pgworkers.checkpoint_or_progress AS jsonb  -- checkpoint and progress
    CONSTRAINT checkpoint_or_progress_fits CHECK (pg_column_size(VALUE #> '{}') <= 256 OR pg_column_size(VALUE) <= 4194304 AND octet_length(VALUE::text) <= 4194304);
-- Each level of nesting takes eight bytes, so the levels of a value of up to 1024 bytes are not counted.
CREATE DOMAIN pgworkers.job_meta AS jsonb
    CONSTRAINT job_meta_is_an_object CHECK (jsonb_typeof(VALUE) = 'object')
    CONSTRAINT job_meta_fits CHECK (pg_column_size(VALUE) <= 32768 AND octet_length(VALUE::text) <= 32768)
    CONSTRAINT job_meta_is_flat CHECK (pg_column_size(VALUE #> '{}') <= 1024 OR NOT jsonb_path_exists(VALUE, '$.**{129}'));
CREATE DOMAIN pgworkers.arguments AS jsonb
    CONSTRAINT job_args_are_an_object CHECK (jsonb_typeof(VALUE) = 'object')
    CONSTRAINT job_args_fit CHECK (pg_column_size(VALUE #> '{}') <= 256 OR pg_column_size(VALUE) <= 4194304 AND octet_length(VALUE::text) <= 4194304)
    CONSTRAINT job_args_are_flat CHECK (pg_column_size(VALUE #> '{}') <= 1024 OR NOT jsonb_path_exists(VALUE, '$.**{129}'));

-- The run_at of a job that waits for other jobs: the duty `promote` never reaches it. Not infinity: nothing can be subtracted from
-- that, and Python cannot read it.
CREATE FUNCTION pgworkers.far_future() RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT '9999-01-01 00:00:00+00'::pg_catalog.timestamptz $$;

-- A group is the set of ready jobs of one queue and task with the same concurrency key. This is the hash of the key. Claims begin at a
-- random hash, so no group is always the last one.
CREATE FUNCTION pgworkers.concurrency_group(key text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
-- An index uses it, so its result must not depend on the search_path of the caller.
SELECT ('x' OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.md5(coalesce($1, '')), 1, 16))::bit(64)::bigint
$$;


-- ===================================================================================================================================
-- Part 2. Tables
-- ===================================================================================================================================

-- 2.1 Jobs --------------------------------------------------------------------------------------------------------------------------

-- Live jobs only. The statement that ends a job moves its row to `history`.
CREATE TABLE pgworkers.job (
    id                 bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    state              pgworkers.job_state NOT NULL DEFAULT 'ready',
    priority           pgworkers.job_priority NOT NULL DEFAULT 0,
    queue              pgworkers.queue_name NOT NULL,
    task               pgworkers.task_name NOT NULL,
    args               pgworkers.arguments NOT NULL DEFAULT '{}',
    -- the fence: every claim increments it, every later write names it
    lease              integer NOT NULL DEFAULT 0,
    host               uuid,                                                -- the owner of a running row
    attempt            pgworkers.attempt_count NOT NULL DEFAULT 0,          -- attempts used; a release gives one back
    crashes            pgworkers.attempt_count NOT NULL DEFAULT 0,
    max_attempts       pgworkers.attempt_limit NOT NULL DEFAULT 20,
    max_crashes        pgworkers.attempt_limit NOT NULL DEFAULT 3,
    created_at         pgworkers.bounded_timestamp NOT NULL DEFAULT now(),
    run_at             pgworkers.bounded_timestamp NOT NULL DEFAULT now(),  -- it does not start before; of a ready job: ready since
    claimed_at         pgworkers.bounded_timestamp,
    -- if it has not started by then it is dead, verdict expired
    expires_at         pgworkers.bounded_timestamp,
    deadline_at        pgworkers.bounded_timestamp,                         -- of the whole job, over all attempts
    timeout            pgworkers.job_timeout,                               -- of one attempt; NULL: what the task declares
    memory             pgworkers.job_memory,                                -- bytes; NULL: what the task declares
    unique_key         pgworkers.unique_key_text,
    concurrency_key    pgworkers.concurrency_key_text,
    -- claimed only through admit_limited_jobs(): its task is limited, or a host parked it
    behind_limit       boolean NOT NULL DEFAULT false,
    cancel_at          pgworkers.bounded_timestamp,                         -- when a cancel was requested
    checkpoint         pgworkers.checkpoint_or_progress,
    progress           pgworkers.checkpoint_or_progress,
    errors             pgworkers.error_lines NOT NULL DEFAULT '{}',         -- one line per failed attempt, the last ten
    meta               pgworkers.job_meta,                                  -- why it was enqueued
    batch_id           bigint,
    -- its end calls settle_dependents(): it is in a batch, others wait for it, or it waited
    has_links          boolean NOT NULL DEFAULT false,
    -- attempts in a row that ended with the death of a supervisor or host
    consecutive_losses pgworkers.attempt_count NOT NULL DEFAULT 0,
    enqueued_by        pgworkers.login_name NOT NULL DEFAULT session_user,  -- the login
    enqueue_grant_id   integer,                                             -- the enqueue_grant that counts it while it waits
    -- A live job is scheduled, ready or running, and only a running one has a host. Short, because each statement that writes parses it.
    CONSTRAINT job_is_live CHECK (CASE WHEN host IS NULL THEN state < 'claimed' ELSE state = 'running' END)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);

-- Jobs that have ended, in one partition per day.
CREATE TABLE pgworkers.history (
    id              bigint      NOT NULL,
    state           pgworkers.job_state NOT NULL,
    verdict         text        NOT NULL,
    priority        integer     NOT NULL,
    queue           text        NOT NULL,
    task            text        NOT NULL,
    args            jsonb       NOT NULL,
    lease           integer     NOT NULL,
    host            uuid,                                -- who ran the last attempt
    attempt         integer     NOT NULL,
    crashes         integer     NOT NULL,
    max_attempts    integer     NOT NULL,
    max_crashes     integer     NOT NULL,
    created_at      timestamptz NOT NULL,
    run_at          timestamptz NOT NULL,
    started_at      timestamptz,
    finished_at     timestamptz NOT NULL DEFAULT now(),
    duration        double precision,                    -- seconds of the last attempt
    cpu_seconds     double precision,
    peak_rss        bigint,
    deadline_at     timestamptz,
    timeout         interval,
    memory          bigint,
    unique_key      text,
    concurrency_key text,
    checkpoint      jsonb,
    progress        jsonb,
    result          pgworkers.job_result,
    errors          text[]      NOT NULL,
    meta            jsonb,
    batch_id        bigint,
    has_links       boolean     NOT NULL DEFAULT false,
    enqueued_by     text        NOT NULL DEFAULT session_user,
    kept            boolean     NOT NULL DEFAULT false,  -- outlives the partition of its day, see move_kept_rows()
    PRIMARY KEY (id, finished_at, kept),
    CONSTRAINT history_is_finished CHECK (state IN ('succeeded', 'dead', 'cancelled'))
) PARTITION BY RANGE (kept, finished_at);
CREATE TABLE pgworkers.history_kept PARTITION OF pgworkers.history FOR VALUES FROM (true, MINVALUE) TO (true, MAXVALUE);
CREATE TABLE pgworkers.history_default PARTITION OF pgworkers.history DEFAULT;

-- One row for each attempt that did not succeed.
CREATE TABLE pgworkers.attempt (
    job_id      bigint      NOT NULL,
    attempt     integer     NOT NULL,
    lease       integer     NOT NULL,
    host        uuid,
    queue       text        NOT NULL,
    task        text        NOT NULL,
    verdict     text        NOT NULL,
    started_at  timestamptz,
    finished_at timestamptz NOT NULL DEFAULT now(),
    duration    double precision,
    cpu_seconds double precision,
    peak_rss    bigint,
    error       pgworkers.attempt_text,
    traceback   pgworkers.attempt_text,
    stack       pgworkers.attempt_text,             -- faulthandler's dump of a killed or crashed worker
    exit_status text,                               -- "exit 3", "SIGKILL"
    output      pgworkers.attempt_text,             -- the end of stdout and stderr
    progress    jsonb,
    rungs       jsonb,                              -- the stop ladder: [{"rung": "ask", "after": 0.0}, ...]
    worker      text,                               -- "render/0 pid 4711"
    version     text,                               -- of the user's code
    kept        boolean     NOT NULL DEFAULT false  -- as in history
) PARTITION BY RANGE (kept, finished_at);
CREATE TABLE pgworkers.attempt_kept PARTITION OF pgworkers.attempt FOR VALUES FROM (true, MINVALUE) TO (true, MAXVALUE);
CREATE TABLE pgworkers.attempt_default PARTITION OF pgworkers.attempt DEFAULT;

-- `job_id` waits for `parent_id`. The row is deleted when the wait is over. With on_failed = 'wait' it stays after the parent has
-- failed, because an operator may requeue the parent.
CREATE TABLE pgworkers.dependency (
    parent_id bigint  NOT NULL,
    job_id    bigint  NOT NULL,
    on_failed text    NOT NULL,
    linked    boolean NOT NULL DEFAULT false,  -- the parent's row is marked (job.has_links), so its end settles this row
    PRIMARY KEY (parent_id, job_id),
    CONSTRAINT dependency_on_failed CHECK (on_failed IN ('cancel', 'run', 'wait'))
);

-- Jobs that ended with more followers than one statement settles. The leader goes on with them: reopen_links(), link_dependencies().
CREATE TABLE pgworkers.ended_parent (
    id            bigint PRIMARY KEY,
    settled_up_to bigint NOT NULL DEFAULT -9223372036854775808  -- followers up to this id are settled
) WITH (fillfactor = 50);

-- Many jobs (job.batch_id), and one job that runs after the last of them. There is no counter of jobs that ended: they are counted
-- when the number is needed.
CREATE TABLE pgworkers.batch (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    total        bigint      NOT NULL DEFAULT 0,
    then_id      bigint,                              -- a job that waits until the last job of the batch has ended
    on_failed    text        NOT NULL DEFAULT 'run',  -- what failed jobs mean for `then_id`
    created_at   timestamptz NOT NULL DEFAULT now(),
    cancelled_at timestamptz,
    finished_at  timestamptz,
    CONSTRAINT batch_on_failed CHECK (on_failed IN ('cancel', 'run', 'wait'))
);

-- The job that an enqueue with an idempotency key made. Until `expires_at` the key leads to that job, whether it has ended or not.
-- `login`: a login that may only enqueue has keys of its own; all other logins share the keys of ''. `job_id` is NULL only inside the
-- transaction that enqueues.
CREATE TABLE pgworkers.idempotency_key (
    task       pgworkers.task_name NOT NULL,
    login      text NOT NULL CONSTRAINT idempotency_login_fits CHECK (octet_length(login) <= 63),
    key        pgworkers.idempotency_key_text NOT NULL,
    job_id     bigint,
    expires_at pgworkers.bounded_timestamp NOT NULL,
    PRIMARY KEY (task, login, key)
);

-- 2.2 What deploys declare and operators tune ---------------------------------------------------------------------------------------

-- Queues. A deploy inserts missing rows. It does not overwrite what operators have set.
CREATE TABLE pgworkers.queue (
    name                     text PRIMARY KEY,
    paused                   boolean     NOT NULL DEFAULT false,
    workers                  integer,                         -- per host; NULL: what the app declares
    cluster_workers          integer,                         -- over all hosts; NULL: what the app declares
    throttled_until          pgworkers.bounded_timestamp,
    throttle_level           integer     NOT NULL DEFAULT 0,  -- the throttle level, see throttle_queue()
    retention                interval CONSTRAINT queue_retention_fits CHECK (retention BETWEEN '0' AND '36500 days'),
    created_at               timestamptz NOT NULL DEFAULT now(),
    updated_at               timestamptz NOT NULL DEFAULT now(),
    -- Declared by the last deploy. The columns above, which operators set, win.
    declared_cluster_workers integer CHECK (declared_cluster_workers >= 1),
    declared_retention       interval                         -- NULL: the setting applies
        CONSTRAINT queue_declared_retention_fits CHECK (declared_retention BETWEEN '0' AND '36500 days'),
    CONSTRAINT queue_name_fits CHECK (octet_length(name) BETWEEN 1 AND 200),
    CONSTRAINT queue_workers_fit CHECK (workers BETWEEN 0 AND 1024),
    CONSTRAINT queue_cluster_fits CHECK (cluster_workers >= 0)
);

-- What the deployed apps declare about their tasks, so that SQL can enqueue without knowing the app.
CREATE TABLE pgworkers.task (
    name                pgworkers.task_name PRIMARY KEY,
    queue               pgworkers.queue_name NOT NULL,
    priority            pgworkers.job_priority NOT NULL,
    max_attempts        pgworkers.attempt_limit NOT NULL,
    max_crashes         pgworkers.attempt_limit NOT NULL,
    -- of one attempt; also the longest that an enqueue-only login may ask for
    timeout             pgworkers.job_timeout,
    memory              pgworkers.job_memory,                      -- also the most that an enqueue-only login may ask for
    concurrency         integer CHECK (concurrency >= 1),          -- jobs of the task that run at once; NULL: no limit
    concurrency_per_key integer CHECK (concurrency_per_key >= 1),  -- jobs with the same concurrency key; NULL: one
    lost_retry          boolean     NOT NULL DEFAULT true,         -- whether a job of a lost host runs again,
    lost_delay          pgworkers.seconds,                         -- and after how many seconds; NULL: by the usual back-off
    -- names of secret arguments; enqueue() marks those that are not marked
    secret              text[]      NOT NULL DEFAULT '{}',
    updated_at          timestamptz NOT NULL DEFAULT now()
);

-- Concurrency limits that an operator has set. They win over those that the app declares in `task`. A limit is a number of slots. The
-- slots in use are counted from running rows, so a slot is free as soon as its job no longer runs, and no slot can leak.
CREATE TABLE pgworkers.concurrency (
    kind       text        NOT NULL CHECK (kind IN ('task', 'key')),
    name       text        NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 1000),
    slots      integer     NOT NULL CHECK (slots >= 0),  -- 0: nothing of it starts
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);

-- What logins that may only enqueue may enqueue. A login without a row here, and without a row of a role that it is a member of, may
-- enqueue everything. Logins that may insert into `job` themselves (hosts, operators, the owner) are not restricted.
CREATE TABLE pgworkers.enqueue_grant (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    role        text        NOT NULL,                -- a login, or a role that logins are members of
    queue       text        NOT NULL DEFAULT '*',    -- a queue's name, or '*': any
    task        text        NOT NULL DEFAULT '*',    -- a task's name, or '*': any
    max_waiting integer,                             -- how many jobs of this grant may wait at once; NULL: any number
    may_replace boolean     NOT NULL DEFAULT false,  -- may use on_conflict => 'replace' on jobs of other logins
    granted_at  timestamptz NOT NULL DEFAULT now(),
    granted_by  text        NOT NULL DEFAULT session_user,
    CONSTRAINT enqueue_grant_once UNIQUE (role, queue, task),
    CONSTRAINT enqueue_grant_names_fit CHECK (octet_length(role) BETWEEN 1 AND 63 AND octet_length(queue) BETWEEN 1 AND 200
                                              AND octet_length(task) BETWEEN 1 AND 500),
    CONSTRAINT enqueue_grant_waiting CHECK (max_waiting BETWEEN 0 AND 1000000)
);

-- Schedules. A schedule has one row with scope ''. A scoped schedule has one more row for each scope, and its row '' never fires: it
-- is the template of its scopes.
CREATE TABLE pgworkers.schedule (
    name          text        NOT NULL,
    scope         text        NOT NULL DEFAULT '',
    -- What a deploy declares. A change takes effect from then on.
    scope_kind    text        NOT NULL DEFAULT '',                     -- "tenant"; '': not scoped
    task          text        NOT NULL,
    cron          text,
    every         pgworkers.seconds CHECK (every > 0),                 -- seconds
    tz            text        NOT NULL DEFAULT 'UTC',
    jitter        pgworkers.seconds NOT NULL DEFAULT 0,                -- seconds
    starts_at     pgworkers.bounded_timestamp,                         -- no tick before it; the anchor of an interval
    ends_at       pgworkers.bounded_timestamp,                         -- no tick at or after it
    missed        text        NOT NULL DEFAULT 'latest',
    missed_window pgworkers.seconds NOT NULL DEFAULT 86400,            -- seconds; how far back 'all' goes
    overlap       text        NOT NULL DEFAULT 'allow',
    reentrant     boolean     NOT NULL DEFAULT true,
    args          jsonb       NOT NULL DEFAULT '{}',
    scope_args    jsonb       NOT NULL DEFAULT '{}',                   -- of this scope; they override args
    options       jsonb       NOT NULL DEFAULT '{}',                   -- of the job: queue, priority, deadline, expires (seconds)
    -- What operators set. A deploy never changes it.
    paused        boolean     NOT NULL DEFAULT false,
    -- What happened.
    revision      bigint      NOT NULL DEFAULT 1,                      -- the fence: every write raises it, every firing names it
    created_at    pgworkers.bounded_timestamp NOT NULL DEFAULT now(),
    changed_at    pgworkers.bounded_timestamp NOT NULL DEFAULT now(),
    planned_until pgworkers.bounded_timestamp NOT NULL DEFAULT now(),  -- ticks up to here were planned
    -- the next tick, for people; NULL: not planned yet, or none will come
    next_at       pgworkers.bounded_timestamp,
    due_at        timestamptz NOT NULL DEFAULT '-infinity',            -- when the leader plans it again
    last_at       pgworkers.bounded_timestamp,
    last_job      bigint,
    skipped       bigint      NOT NULL DEFAULT 0,                      -- missed ticks that the policy gave up
    error         text,                                                -- why it cannot fire
    PRIMARY KEY (name, scope),
    CONSTRAINT schedule_names_fit CHECK (octet_length(name) BETWEEN 1 AND 200 AND octet_length(scope) <= 500
                                         AND octet_length(scope_kind) <= 200),
    CONSTRAINT schedule_is_one CHECK ((cron IS NULL) <> (every IS NULL)),
    -- One row must never stop the others: no value that Python cannot read, or that takes minutes to compute with.
    CONSTRAINT schedule_cron_fits CHECK (octet_length(cron) <= 1000 AND octet_length(tz) <= 100),
    CONSTRAINT schedule_seconds_fit CHECK (every BETWEEN 1 AND 3155760000 AND jitter BETWEEN 0 AND 3155760000
                                           AND missed_window BETWEEN 0 AND 3155760000),
    CONSTRAINT schedule_due_fits CHECK (due_at <= '9999-01-01 00:00:00+00'),  -- -infinity: now; the upper end is far_future()
    CONSTRAINT schedule_missed CHECK (missed IN ('latest', 'all', 'skip')),
    CONSTRAINT schedule_overlap CHECK (overlap IN ('allow', 'skip', 'replace')),
    CONSTRAINT schedule_args_are_objects CHECK (jsonb_typeof(args) = 'object' AND jsonb_typeof(scope_args) = 'object'
                                                AND jsonb_typeof(options) = 'object')
) WITH (fillfactor = 70);

-- Ticks of schedules. The primary key is why a tick cannot make two jobs. Rows of a removed schedule stay until they are old.
CREATE TABLE pgworkers.tick (
    schedule text        NOT NULL,
    scope    text        NOT NULL,
    at       pgworkers.bounded_timestamp NOT NULL,  -- by the calendar; of a manual tick: when it was requested
    job_id   bigint,                                -- NULL: no job was made
    reason   text,                                  -- why no job was made
    manual   boolean     NOT NULL DEFAULT false,
    fired_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (schedule, scope, at)
);

-- 2.3 Hosts -------------------------------------------------------------------------------------------------------------------------

-- One row for each run of a master. A host owns the leases of its jobs.
CREATE TABLE pgworkers.host (
    id               uuid PRIMARY KEY,
    name             text        NOT NULL,
    pid              integer     NOT NULL,
    label            text        NOT NULL DEFAULT '',
    app              text        NOT NULL,
    version          text        NOT NULL,
    state            text        NOT NULL DEFAULT 'running',
    leader           boolean     NOT NULL DEFAULT false,
    queues           text[]      NOT NULL,
    tasks            text[]      NOT NULL DEFAULT '{}',  -- of its app; the table task has those of all deploys
    started_at       timestamptz NOT NULL DEFAULT now(),
    renewed_at       timestamptz NOT NULL DEFAULT now(),
    lease            interval    NOT NULL,               -- after this long without renewal its jobs are lost
    workers          jsonb       NOT NULL DEFAULT '[]',  -- as of the last renewal, see the view `worker`
    problems         jsonb       NOT NULL DEFAULT '[]',  -- queues whose workers cannot start: queue, error, traceback
    load             double precision,                   -- of the machine, over the last minute
    cores            integer,                            -- CPUs that the host may use
    metrics          text        NOT NULL DEFAULT '',    -- the address of /metrics; empty: off
    -- that its code knows; a migration that does not serve it is not applied while it runs
    newest_migration integer     NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- The term of the leading host: one row, which only workers may write. This row decides which host leads. The advisory lock is only
-- the fast path, because any login can hold it (docs/adr/23).
CREATE TABLE pgworkers.leader (
    id            integer     PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    term          bigint      NOT NULL DEFAULT 1,  -- counts the terms: the fence of every renewal
    host          uuid,                            -- NULL: the leader resigned
    pid           integer     NOT NULL,            -- of the session that leads
    session_start timestamptz NOT NULL,
    locked        boolean     NOT NULL,            -- whether the session holds the advisory lock, too
    valid_until   timestamptz NOT NULL CHECK (isfinite(valid_until))
) WITH (fillfactor = 50);

-- Hosts that are idle and have free workers for jobs of a queue. A new job wakes one of them: notify_ready(). Without such a row no
-- host is notified: NOTIFY makes all commits wait for one another, and a busy host polls by itself (docs/adr/21). Unlogged: a host
-- that reconnects writes its rows again.
CREATE UNLOGGED TABLE pgworkers.idle_host (
    queue            text NOT NULL,
    host             uuid NOT NULL REFERENCES pgworkers.host (id) ON DELETE CASCADE,
    -- until then all idle hosts are notified, because this host found a job that no notified host had claimed
    notify_all_until timestamptz,
    PRIMARY KEY (queue, host)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- The share of each host in the workers of a queue that is limited over all hosts.
CREATE TABLE pgworkers.cluster_slots (
    queue           text        NOT NULL,
    host            uuid        NOT NULL REFERENCES pgworkers.host (id) ON DELETE CASCADE,
    granted         integer     NOT NULL CHECK (granted >= 0),       -- how many workers may run there
    acknowledged    integer     NOT NULL CHECK (acknowledged >= 0),  -- how many may still be running there, whatever is granted
    -- if a lease passes without another acknowledgement, the row is deleted
    acknowledged_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (queue, host)
) WITH (fillfactor = 50);

-- What operators ask of a host about one of its workers, and the answer. Short-lived rows.
CREATE TABLE pgworkers.request (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host        uuid        NOT NULL,
    kind        text        NOT NULL,
    job_id      bigint,  -- about this job, whatever worker has it
    queue       text,    -- or about this worker
    slot        integer,
    asked_at    timestamptz NOT NULL DEFAULT now(),
    taken_at    timestamptz,
    answered_at timestamptz,
    done        boolean,
    answer      text,
    CONSTRAINT request_kind CHECK (kind IN ('stack', 'suspend', 'resume', 'kill', 'leave'))
);

-- Rows that are only locked: 0 to 1023 stand for concurrency limits, limit_mutex(); 1024 to 2047 for batches, batch_mutex(). A name is
-- mapped to a row by its hash. Rows instead of advisory locks, because any login can hold those: locking one of these rows takes
-- UPDATE on this table (docs/adr/23).
CREATE TABLE pgworkers.mutex (id integer PRIMARY KEY CHECK (id BETWEEN 0 AND 2047));
INSERT INTO pgworkers.mutex SELECT generate_series(0, 2047);

-- 2.4 Rates and limits --------------------------------------------------------------------------------------------------------------

-- Token buckets of rate limits. The balance may be negative: those tokens are reserved and due later. `balance_before` and `granted`
-- are the last answer, because an upsert can return only what it wrote.
CREATE TABLE pgworkers.rate_bucket (
    scope          text PRIMARY KEY,
    rate           double precision NOT NULL,  -- tokens a second
    burst          double precision NOT NULL,  -- the most tokens that it holds
    tokens         double precision NOT NULL,
    balance_before double precision NOT NULL DEFAULT 0,
    granted        double precision NOT NULL DEFAULT 0,
    updated_at     timestamptz      NOT NULL,
    CONSTRAINT rate_bucket_scope_fits CHECK (octet_length(scope) BETWEEN 1 AND 200),
    CONSTRAINT rate_bucket_flows CHECK (rate > 0 AND rate < 'infinity' AND burst >= 1 AND burst < 'infinity')
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Where counting the slots of a limit begins: each job that runs behind the limit was claimed at `since` or later, or is one of
-- `older_running_ids`. While a snapshot is held, the index entries of all jobs that ran since then stay. A count that begins at the
-- mark does not read them. Only remember_limit_scans() makes a mark, with the limit locked. A limit without a mark is counted from the
-- beginning, so deleting a mark is safe at any time. The newest mark of a limit is valid. It is the last one in the index, so what is
-- left of older ones is not read.
CREATE TABLE pgworkers.limit_scan_start (
    kind              text        NOT NULL,
    name              text        NOT NULL,
    nth               bigint      GENERATED BY DEFAULT AS IDENTITY,
    since             timestamptz NOT NULL,
    older_running_ids bigint[]    NOT NULL,
    PRIMARY KEY (kind, name, nth)
);

-- Where the first jobs of a group are, or (without a group) those of a task. When the mark was made, no job was ready before
-- `first_id` in `priority`, nor in higher priorities among the ids up to `newest_id`. While a snapshot is held, the entries of all
-- jobs that were claimed since then stay in the indexes job_ready_limited and job_ready_by_task. A scan that begins at the mark
-- does not read them. A job that becomes ready before the mark later (a retry, a late commit) is found by the next scan from the
-- head. That scan is due at `valid_until`, and of a group at once when nothing is ready behind the mark. Only
-- remember_group_scans() and remember_task_scans() make marks. Deleting one is safe at any time. The newest one is valid, as above.
CREATE TABLE pgworkers.group_scan_start (
    queue       text        NOT NULL,
    task        text        NOT NULL,
    group_hash  bigint,                                  -- NULL: the mark is that of the task
    nth         bigint      GENERATED BY DEFAULT AS IDENTITY,
    priority    bigint,                                  -- NULL: claims search the groups of the task and do not read its first jobs
    first_id    bigint      NOT NULL,
    newest_id   bigint      NOT NULL,
    valid_until timestamptz NOT NULL,
    UNIQUE (queue, task, group_hash, nth)
);

-- Tasks whose limit was set a moment ago. A claim that began before that does not know of the limit: what it takes becomes a running
-- job that is not counted, after limit_running_jobs() has looked for such jobs. `older_transactions`: the transactions that may be
-- such claims (virtual ids, as in pg_locks); NULL: the first claim behind the limit finds out which. Written only with the limit
-- locked.
CREATE TABLE pgworkers.recent_limit (
    task               text        PRIMARY KEY,
    since              timestamptz NOT NULL DEFAULT clock_timestamp(),
    older_transactions text[]
);

-- 2.5 Records -----------------------------------------------------------------------------------------------------------------------

-- What people and programs did to jobs and to the retention of queues. Operators cannot rewrite this log: they may not write
-- `history`, and the functions that do it for them (4.7) insert a row here.
CREATE TABLE pgworkers.operation (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    verb        text        NOT NULL,
    job_id      bigint,               -- the job, or
    queue       text,                 -- the queue that was changed
    login       text        NOT NULL DEFAULT session_user,
    os_user     text,                 -- "anna@laptop", as reported by the caller
    reason      text,
    state       pgworkers.job_state,  -- the end that was deleted from history, and when it was;
    finished_at timestamptz,          -- of a purged job nothing else is left
    CONSTRAINT operation_verb CHECK (verb IN ('cancel', 'discard', 'purge', 'retry', 'forget', 'retention', 'deadline')),
    CONSTRAINT operation_of_one CHECK (num_nonnulls(job_id, queue) = 1),
    CONSTRAINT operation_texts_fit CHECK (octet_length(reason) <= 2000 AND octet_length(os_user) <= 400)
);

-- What happened in a minute, per queue and task: rows with the verdict `started` hold how long jobs had waited, the others how long
-- attempts took. Hosts add to the same rows: histograms with fixed buckets merge exactly. Nothing is written per job.
CREATE TABLE pgworkers.minute_statistics (
    minute    timestamptz      NOT NULL,
    queue     text             NOT NULL,
    task      text             NOT NULL,
    verdict   text             NOT NULL,  -- or 'started'
    count     bigint           NOT NULL,
    seconds   double precision NOT NULL,  -- the sum of what the histogram holds
    cpu       double precision NOT NULL,  -- seconds
    histogram bigint[]         NOT NULL,  -- 1: below 1 ms; n: from 1 ms * 2^((n - 2) / 4)
    PRIMARY KEY (minute, queue, task, verdict)
);


-- ===================================================================================================================================
-- Part 3. Indexes
-- ===================================================================================================================================

-- The order of claims. Jobs behind a concurrency limit are not in it, so they never stand in front of jobs that can be claimed.
CREATE INDEX job_ready ON pgworkers.job (queue, priority DESC, id)
    WHERE state = 'ready' AND NOT behind_limit AND concurrency_key IS NULL;
-- Claims of jobs behind limits. The task comes before the group: a task that is full, or that a host does not know, is skipped by one
-- probe, however many groups it has.
CREATE INDEX job_ready_limited ON pgworkers.job (queue, task, pgworkers.concurrency_group(concurrency_key), priority DESC, id)
    WHERE state = 'ready' AND (behind_limit OR concurrency_key IS NOT NULL);
-- The first jobs of a task behind limits. The condition is inside coalesce(), so that only this index can serve such a scan, and no
-- other.
CREATE INDEX job_ready_by_task ON pgworkers.job (queue, task, priority DESC, id)
    WHERE state = 'ready' AND coalesce(behind_limit OR concurrency_key IS NOT NULL, false);
-- The duty `promote` takes the earliest. The id lets counts go on in portions.
CREATE INDEX job_scheduled ON pgworkers.job (run_at, id) WHERE state = 'scheduled';
-- The jobs of a host: rescue, renewals, counts of what runs. Not `WHERE state = 'running'`: then each guard `state = 'running'` would
-- match it, and with fresh statistics (nothing runs) the planner would answer a finish from this index, which is full of dead entries
-- (docs/adr/05).
CREATE INDEX job_running ON pgworkers.job (host, claimed_at) WHERE host IS NOT NULL;
-- The slots in use of a task's limit and of a key's limit. Not `state = 'running'`, as above. The condition is inside coalesce(), so
-- that only one of these two and job_running can serve a count: the planner believes that nothing runs, and would take any of them.
CREATE INDEX job_running_by_task ON pgworkers.job (task, claimed_at)
    WHERE coalesce(host IS NOT NULL AND (behind_limit OR concurrency_key IS NOT NULL), false);
CREATE INDEX job_running_by_key ON pgworkers.job (concurrency_key, claimed_at)
    WHERE coalesce(host IS NOT NULL AND concurrency_key IS NOT NULL, false);
-- The unique key. An error message of the client names this index.
CREATE UNIQUE INDEX job_unique ON pgworkers.job (task, unique_key) WHERE unique_key IS NOT NULL;
-- The live jobs of a batch, read backwards: the newest job is claimed last, so a search for a live one ends at once.
CREATE INDEX job_batch ON pgworkers.job (batch_id, id) WHERE batch_id IS NOT NULL;
-- The duty `expire` takes the earliest.
CREATE INDEX job_expires ON pgworkers.job (expires_at) WHERE expires_at IS NOT NULL AND state <> 'running';
-- Counts the waiting jobs of a grant. Only grants with a bound are counted.
CREATE INDEX job_enqueue_grant ON pgworkers.job (enqueue_grant_id) WHERE enqueue_grant_id IS NOT NULL AND host IS NULL;

-- Lists of dead and cancelled jobs, newest first. Without successes, which are nearly all rows: the primary key lists those.
CREATE INDEX history_state ON pgworkers.history (state, id) WHERE state <> 'succeeded';
-- Whether jobs of a batch failed, and how many.
CREATE INDEX history_batch ON pgworkers.history (batch_id, id) WHERE batch_id IS NOT NULL AND state <> 'succeeded';
-- The attempts of a job, and whether an attempt was written already.
CREATE INDEX attempt_job ON pgworkers.attempt (job_id, lease);

-- What a job waits for.
CREATE INDEX dependency_job ON pgworkers.dependency (job_id);
-- What the leader has to link.
CREATE INDEX dependency_new ON pgworkers.dependency (job_id) WHERE NOT linked;
-- Batches to settle, and batches to prune.
CREATE INDEX batch_open ON pgworkers.batch (id) WHERE finished_at IS NULL;
CREATE INDEX batch_finished ON pgworkers.batch (finished_at) WHERE finished_at IS NOT NULL;
-- The duty `prune`.
CREATE INDEX idempotency_key_expires ON pgworkers.idempotency_key (expires_at);

-- Each claim asks whether any task is limited.
CREATE INDEX task_limited ON pgworkers.task (name) WHERE concurrency IS NOT NULL;
-- Schedules that are due.
CREATE INDEX schedule_due ON pgworkers.schedule (due_at) WHERE NOT paused;
-- The duty `prune`, in the order of time.
CREATE INDEX tick_at ON pgworkers.tick (at, schedule, scope);

-- The rows of one host: its own writes, and the foreign key when a host is deleted.
CREATE INDEX idle_host_host ON pgworkers.idle_host (host);
CREATE INDEX cluster_slots_host ON pgworkers.cluster_slots (host);
-- Open requests of a host.
CREATE INDEX request_open ON pgworkers.request (host) WHERE taken_at IS NULL;
-- The duty `prune`, for requests and the scan starts of limits and groups.
CREATE INDEX request_asked ON pgworkers.request (asked_at);
CREATE INDEX limit_scan_start_since ON pgworkers.limit_scan_start (since);
CREATE INDEX group_scan_start_valid_until ON pgworkers.group_scan_start (valid_until);

-- The operations on a job.
CREATE INDEX operation_job ON pgworkers.operation (job_id, id);
-- The duty `prune`.
CREATE INDEX operation_at ON pgworkers.operation (at);


-- ===================================================================================================================================
-- Part 4. Functions
-- ===================================================================================================================================
-- Most functions have a search_path of their own. A function without one is either inlined into the statement that calls it, or it is
-- called so often that setting and restoring a search_path with each call costs too much (docs/adr/32). In such a function each name
-- is qualified, operators too.

-- 4.1 Notify ------------------------------------------------------------------------------------------------------------------------

-- Send a notification, unless the server's queue of notifications is nearly full. A listener in a long transaction can fill that
-- queue, and then each COMMIT that notifies fails. A lost notification only delays: hosts poll. No search_path, so that it is inlined
-- (docs/adr/21).
CREATE FUNCTION pgworkers.notify(payload text, channel text DEFAULT 'pgworkers') RETURNS void
LANGUAGE sql AS $$
SELECT CASE WHEN pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.<) 0.9
            THEN pg_catalog.pg_notify(channel, payload) END
$$;

-- Notify one idle host that jobs of a queue are ready: a host that knows all of `tasks` and has renewed its row lately. Notify all
-- hosts when there is no such host, when several jobs became ready at once, or while a host has asked for that (notify_all_until).
-- `jobs`: how many became ready; NULL: this transaction may add more. `except_host`: a host that is not to be chosen, because it is
-- full. The choice depends on the start of the transaction: over many transactions each host gets its share, and the identical
-- notifications of one transaction become one. The channel of a host is its id, so that other hosts are not woken. No search_path.
-- Index: the primary keys. (docs/adr/21)
CREATE FUNCTION pgworkers.notify_ready(queue text, tasks text[], jobs bigint, except_host uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    seed pg_catalog.int8 := pg_catalog.hashtextextended(pg_catalog.now()::pg_catalog.text, 0);
    chosen_host pg_catalog.uuid;
    notify_all pg_catalog.bool;
BEGIN
    IF notify_ready.jobs IS NULL OR notify_ready.jobs OPERATOR(pg_catalog.=) 1 THEN
        SELECT idle.host, idle.notify_all INTO chosen_host, notify_all
          FROM (SELECT a.host, coalesce(a.notify_all_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), false) AS notify_all
                  FROM pgworkers.idle_host a
                 WHERE a.queue OPERATOR(pg_catalog.=) notify_ready.queue
                   AND (notify_ready.except_host IS NULL OR a.host OPERATOR(pg_catalog.<>) notify_ready.except_host)
                 ORDER BY 2 DESC, pg_catalog.uuid_hash_extended(a.host, seed)) idle
         WHERE EXISTS (SELECT FROM pgworkers.host h
                        WHERE h.id OPERATOR(pg_catalog.=) idle.host AND h.tasks OPERATOR(pg_catalog.@>) notify_ready.tasks
                          AND h.renewed_at OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-)
                                                                   (h.lease OPERATOR(pg_catalog./) 3::pg_catalog.float8))
                       OFFSET 0)  -- no join: hosts are checked one after the other, until one fits
         LIMIT 1;
    END IF;
    IF chosen_host IS NULL OR notify_all THEN
        PERFORM pgworkers.notify(pg_catalog.concat('ready:', notify_ready.queue));
    ELSE
        PERFORM pgworkers.notify(pg_catalog.concat(CASE WHEN notify_ready.jobs IS NULL THEN 'ready:' ELSE 'one:' END, notify_ready.queue,
                                                 ':', chosen_host), chosen_host::pg_catalog.text);
    END IF;
END $$;

-- Notify the hosts of a queue of each change of its row.
CREATE FUNCTION pgworkers.notify_queue_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgworkers.notify('queue:' || NEW.name);
    RETURN NULL;
END $$;
CREATE TRIGGER queue_changed AFTER UPDATE ON pgworkers.queue
FOR EACH ROW EXECUTE FUNCTION pgworkers.notify_queue_changed();

-- 4.2 Enqueue -----------------------------------------------------------------------------------------------------------------------

-- Refuse values that no job can have, with a sentence instead of a violated constraint. enqueue() calls it only if there is more than
-- a few small arguments.
CREATE FUNCTION pgworkers.check_new_job(args jsonb, meta jsonb, run_at timestamptz, delay interval, timeout interval,
                                     memory bigint, deadline interval, expires interval) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason text;
    name text;
    span interval;
BEGIN
    IF jsonb_typeof(args) IS DISTINCT FROM 'object' THEN
        reason := format('args must be a JSON object of arguments by name, not %s', coalesce(jsonb_typeof(args), 'NULL'));
    ELSIF jsonb_typeof(meta) <> 'object' THEN
        reason := format('meta must be a JSON object, not %s', jsonb_typeof(meta));
    ELSIF jsonb_path_exists(args, '$.**{129}') OR jsonb_path_exists(meta, '$.**{129}') THEN
        reason := 'args and meta may be nested 128 levels deep, not deeper';
    ELSIF memory NOT BETWEEN 1048576 AND 1152921504606846975 THEN
        reason := format('memory is in bytes, at least 1048576 (1MB) and less than 2^60, not %s', memory);
    ELSIF run_at < '1970-01-01 00:00:00+00' OR run_at >= pgworkers.far_future() THEN
        reason := format('run_at must lie between the years 1970 and 9999, not %s', run_at);
    ELSIF timeout <= interval '0' THEN
        reason := format('timeout must be longer than 0, not %s', timeout);
    ELSE
        FOR name, span IN VALUES ('timeout', timeout), ('deadline', deadline), ('expires', expires), ('delay', delay) LOOP
            IF span < interval '0' OR span > interval '36500 days' THEN
                reason := format('%s must be from 0 to 100 years, not %s', name, span);
                EXIT;
            END IF;
        END LOOP;
    END IF;
    IF reason IS NOT NULL THEN
        RAISE EXCEPTION '%', reason USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- Return the first job that was enqueued with an idempotency key. NULL: the key was free or its window is over, and it now belongs to
-- the transaction of the caller, which must set `job_id`. Waits for another open transaction that has taken the key. A repeated
-- enqueue writes nothing and locks nothing. Always uses the index: the table was empty when the statements were planned.
CREATE FUNCTION pgworkers.reserve_idempotency_key(task text, login text, key text, lifetime interval) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    first_job bigint;
BEGIN
    IF lifetime <= interval '0' OR lifetime > interval '31 days' THEN
        RAISE EXCEPTION 'idempotency_window must be longer than 0 and at most 31 days, not %', lifetime
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        SELECT k.job_id INTO first_job FROM pgworkers.idempotency_key k
         WHERE k.task = reserve_idempotency_key.task AND k.login = reserve_idempotency_key.login AND k.key = reserve_idempotency_key.key AND k.expires_at > now();
        IF first_job IS NOT NULL THEN
            RETURN first_job;
        END IF;
        INSERT INTO pgworkers.idempotency_key AS k (task, login, key, expires_at)
        VALUES (reserve_idempotency_key.task, reserve_idempotency_key.login, reserve_idempotency_key.key, now() + lifetime)
        ON CONFLICT (task, login, key) DO UPDATE SET job_id = NULL, expires_at = excluded.expires_at
          WHERE k.expires_at <= now() OR k.job_id IS NULL;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        -- Another transaction took the key between the SELECT and the INSERT, and committed: try again.
    END LOOP;
END $$;

-- Check whether this login may enqueue this task in this queue: which grant counts the job, and whether the login may replace the
-- arguments of jobs that others enqueued. If several grants apply, one without a bound is taken, else one whose bound is not reached.
-- The waiting jobs are counted without a lock, so sessions that enqueue at the same time can exceed a bound together by what they have
-- not committed.
CREATE FUNCTION pgworkers.check_enqueue_grant(task text, queue text, OUT grant_id integer, OUT may_replace boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    is_restricted boolean := false;
    has_grant boolean := false;
    waiting integer;
BEGIN
    may_replace := false;
    FOR one IN
        SELECT g.id, g.max_waiting, g.may_replace,
               g.queue IN ('*', check_enqueue_grant.queue) AND g.task IN ('*', check_enqueue_grant.task) AS fits
          FROM pgworkers.enqueue_grant g
          JOIN pg_roles r ON r.rolname = g.role
         WHERE pg_has_role(session_user, r.oid, 'MEMBER')
         ORDER BY g.max_waiting DESC NULLS FIRST, g.id
    LOOP
        is_restricted := true;
        CONTINUE WHEN NOT one.fits;
        has_grant := true;
        may_replace := one.may_replace;
        IF one.max_waiting IS NULL THEN
            RETURN;
        END IF;
        SELECT count(*) INTO waiting
          FROM (SELECT FROM pgworkers.job j WHERE j.enqueue_grant_id = one.id AND j.host IS NULL LIMIT one.max_waiting) w;
        IF waiting < one.max_waiting THEN
            grant_id := one.id;
            RETURN;
        END IF;
    END LOOP;
    IF has_grant THEN
        RAISE EXCEPTION 'as many jobs of % wait as it may have waiting', session_user
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'pgworkers grants list shows the bounds.';
    ELSIF is_restricted THEN
        RAISE EXCEPTION '% may not enqueue task % in queue %', session_user, check_enqueue_grant.task, check_enqueue_grant.queue
            USING ERRCODE = 'insufficient_privilege', HINT = 'pgworkers grants list shows what it may.';
    END IF;
END $$;

-- Find out what a new job that comes after the jobs `ids` has to wait for: `waiting_for`, which have not ended, or `failed`, a job
-- that already ended without success. `only_of_login`: the login that enqueues, if it may use only its own jobs. Jobs of other logins
-- do not exist for it, and it may not add a follower to a job that already has 5000, because each is work for the leader. They are
-- counted without a lock. Takes no lock: the transaction that enqueues may stay open for long, and the end of a parent must not wait
-- for it. A parent that ends in the meantime is noticed by link_dependencies().
CREATE FUNCTION pgworkers.find_parents(ids bigint[], on_failed text, only_of_login text, OUT waiting_for bigint[], OUT failed bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parent record;
BEGIN
    IF find_parents.on_failed NOT IN ('cancel', 'run', 'wait') THEN
        RAISE EXCEPTION 'on_failed is %: use cancel, run or wait', find_parents.on_failed USING ERRCODE = 'invalid_parameter_value';
    ELSIF cardinality(find_parents.ids) > 1000 THEN
        RAISE EXCEPTION 'after names % jobs; a job comes after at most 1000 jobs', cardinality(find_parents.ids)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a batch, or a job in between.';
    END IF;
    waiting_for := '{}';
    FOR parent IN
        SELECT w.id, p.state
          FROM (SELECT DISTINCT u.id FROM unnest(find_parents.ids) AS u (id)) w
          LEFT JOIN LATERAL (
               (SELECT j.state, j.enqueued_by FROM pgworkers.job j WHERE j.id = w.id)
               UNION ALL
               (SELECT h.state, h.enqueued_by FROM pgworkers.history h WHERE h.id = w.id ORDER BY h.finished_at DESC LIMIT 1)
               LIMIT 1) p ON find_parents.only_of_login IS NULL OR p.enqueued_by = find_parents.only_of_login
         ORDER BY w.id
    LOOP
        IF parent.state IS NULL THEN
            RAISE EXCEPTION 'there is no job #% to come after', parent.id USING ERRCODE = 'no_data_found';
        ELSIF parent.state <= 'running' OR (parent.state <> 'succeeded' AND find_parents.on_failed = 'wait') THEN
            IF find_parents.only_of_login IS NOT NULL THEN
                PERFORM FROM pgworkers.dependency d WHERE d.parent_id = parent.id OFFSET 4999 LIMIT 1;
                IF FOUND THEN
                    RAISE EXCEPTION '5000 jobs come after job #% already; % may not enqueue more', parent.id, find_parents.only_of_login
                        USING ERRCODE = 'configuration_limit_exceeded', HINT = 'Use a job in between.';
                END IF;
            END IF;
            waiting_for := waiting_for || parent.id;
        ELSIF parent.state <> 'succeeded' AND find_parents.on_failed = 'cancel' THEN
            failed := parent.id;
        END IF;
    END LOOP;
END $$;

-- Let a new job wait for its parents, or end it at once because one of them had failed.
CREATE FUNCTION pgworkers.add_dependencies(job_id bigint, parents bigint[], on_failed text, failed bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pgworkers.dependency (parent_id, job_id, on_failed)
    SELECT p.id, add_dependencies.job_id, add_dependencies.on_failed FROM unnest(add_dependencies.parents) AS p (id);
    IF cardinality(add_dependencies.parents) > 0 THEN
        PERFORM pgworkers.notify('due:');  -- the leader links them
    END IF;
    IF add_dependencies.failed IS NOT NULL THEN
        UPDATE pgworkers.job j
           SET errors = ARRAY['cancelled: job #' || add_dependencies.failed || ', which it waited for, did not succeed']
         WHERE j.id = add_dependencies.job_id;
        PERFORM pgworkers.end_jobs(ARRAY[add_dependencies.job_id], 'cancelled');
    END IF;
END $$;

-- Enqueue one job: from psql, a trigger, another language, or the Python API.
-- An idempotency key leads to the first job of this task that was enqueued with it, ended or not, until `idempotency_window` (NULL: a
-- day) after that enqueue. If a live job of the same task holds the unique key, 'return' returns that job, 'replace' replaces its
-- arguments unless it runs, and 'raise' fails. With `after` the job waits until those jobs have succeeded; `on_failed` says what
-- happens if one fails: 'cancel' this job, 'run' it, or 'wait' for a requeue. `held`: the job waits until it is released. A login that
-- may not insert into `job` itself is restricted: it may not exceed what the task's row declares, it follows and replaces only its own
-- jobs, and its rows in `enqueue_grant` say which tasks and queues it may use.
CREATE FUNCTION pgworkers.enqueue(
    task text,
    args jsonb DEFAULT '{}',
    queue text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    unique_key text DEFAULT NULL,
    on_conflict text DEFAULT 'return',
    max_attempts integer DEFAULT NULL,
    max_crashes integer DEFAULT NULL,
    timeout interval DEFAULT NULL,
    memory bigint DEFAULT NULL,
    deadline interval DEFAULT NULL,
    expires interval DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    meta jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL,
    on_failed text DEFAULT 'cancel',
    held boolean DEFAULT false,
    idempotency_key text DEFAULT NULL,
    idempotency_window interval DEFAULT NULL,
    OUT id bigint,
    OUT created boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    declared pgworkers.task;
    due timestamptz := now();
    is_later boolean := false;
    is_waiting boolean := enqueue.held;
    -- True if this is the first statement of its transaction. Otherwise more may follow, and which hosts are idle at its end is
    -- unknown.
    is_own_transaction boolean := statement_timestamp() - now() < interval '20 ms' AND pg_current_xact_id_if_assigned() IS NULL;
    is_trusted boolean := has_any_column_privilege(session_user, 'pgworkers.job'::regclass, 'INSERT');
    grant_id integer;
    may_replace boolean := true;
    parents bigint[];
    failed bigint;
    key_login text := CASE WHEN is_trusted THEN '' ELSE session_user END;
BEGIN
    IF enqueue.idempotency_key IS NOT NULL THEN
        enqueue.id := pgworkers.reserve_idempotency_key(enqueue.task, key_login, enqueue.idempotency_key,
                                               coalesce(enqueue.idempotency_window, interval '1 day'));
        IF enqueue.id IS NOT NULL THEN
            enqueue.created := false;
            RETURN;
        END IF;
    END IF;
    IF enqueue.on_conflict NOT IN ('return', 'replace', 'raise') THEN
        RAISE EXCEPTION 'on_conflict is %: use return, replace or raise', enqueue.on_conflict
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(enqueue.args) IS DISTINCT FROM 'object' OR pg_column_size(enqueue.args) > 1024  -- a level takes eight bytes
       OR num_nonnulls(enqueue.meta, enqueue.run_at, enqueue.delay, enqueue.timeout, enqueue.memory, enqueue.deadline,
                       enqueue.expires) > 0
    THEN
        PERFORM pgworkers.check_new_job(enqueue.args, enqueue.meta, enqueue.run_at, enqueue.delay, enqueue.timeout,
                                     enqueue.memory, enqueue.deadline, enqueue.expires);
        due := coalesce(enqueue.run_at, due) + coalesce(enqueue.delay, interval '0');
        is_later := due > now();
    END IF;
    IF cardinality(enqueue.after) > 0 THEN
        SELECT f.waiting_for, f.failed INTO parents, failed
          FROM pgworkers.find_parents(enqueue.after, enqueue.on_failed, CASE WHEN NOT is_trusted THEN session_user END) f;
        is_waiting := is_waiting OR failed IS NOT NULL OR cardinality(parents) > 0;
    END IF;
    IF NOT is_trusted OR enqueue.queue IS NULL OR enqueue.priority IS NULL OR enqueue.max_attempts IS NULL
       OR enqueue.max_crashes IS NULL THEN
        SELECT * INTO declared FROM pgworkers.task t WHERE t.name = enqueue.task;
        enqueue.queue := coalesce(enqueue.queue, declared.queue, 'default');
        enqueue.priority := coalesce(enqueue.priority, declared.priority, 0);
        enqueue.max_attempts := coalesce(enqueue.max_attempts, declared.max_attempts, 20);
        enqueue.max_crashes := coalesce(enqueue.max_crashes, declared.max_crashes, 3);
        IF cardinality(declared.secret) > 0 THEN  -- as clients in Python do, see pgworkers/secret_arguments.py
            enqueue.args := enqueue.args || coalesce((
                SELECT jsonb_object_agg(s, jsonb_build_object('$secret', enqueue.args -> s)) FROM unnest(declared.secret) s
                 WHERE enqueue.args ? s
                   AND NOT (jsonb_typeof(enqueue.args -> s) = 'object' AND (enqueue.args -> s) ? '$secret')), '{}');
        END IF;
    END IF;
    IF NOT is_trusted THEN
        IF enqueue.held THEN
            RAISE EXCEPTION '% may not enqueue a held job', session_user USING ERRCODE = 'insufficient_privilege',
                HINT = 'Only a login that may insert into pgworkers.job may.';
        END IF;
        IF starts_with(enqueue.concurrency_key, 'schedule:') THEN
            RAISE EXCEPTION 'the concurrency key % begins with schedule:, which is for the jobs of schedules', enqueue.concurrency_key
                USING ERRCODE = 'insufficient_privilege', HINT = 'Use another key.';
        END IF;
        SELECT p.grant_id, p.may_replace INTO grant_id, may_replace FROM pgworkers.check_enqueue_grant(enqueue.task, enqueue.queue) p;
        enqueue.max_attempts := least(enqueue.max_attempts, coalesce(declared.max_attempts, 20));
        enqueue.max_crashes := least(enqueue.max_crashes, coalesce(declared.max_crashes, 3));
        enqueue.timeout := CASE WHEN declared.name IS NOT NULL AND enqueue.timeout IS NOT NULL
                                THEN least(enqueue.timeout, declared.timeout) END;
        enqueue.memory := CASE WHEN enqueue.memory IS NOT NULL AND declared.memory IS NOT NULL
                               THEN least(enqueue.memory, declared.memory) END;  -- NULL: what the queue declares
        enqueue.priority := least(enqueue.priority, coalesce(declared.priority, 0));
    END IF;
    LOOP
        INSERT INTO pgworkers.job AS j (state, priority, queue, task, args, max_attempts, max_crashes, run_at, expires_at,
                                        deadline_at, timeout, memory, unique_key, concurrency_key, meta, has_links, enqueue_grant_id)
        VALUES (CASE WHEN is_waiting OR is_later THEN 'scheduled' ELSE 'ready' END::pgworkers.job_state, enqueue.priority,
                enqueue.queue, enqueue.task, enqueue.args, enqueue.max_attempts, enqueue.max_crashes,
                CASE WHEN is_waiting THEN pgworkers.far_future() ELSE due END, due + enqueue.expires,
                due + enqueue.deadline, enqueue.timeout, enqueue.memory, enqueue.unique_key, enqueue.concurrency_key,
                enqueue.meta, is_waiting, grant_id)
        ON CONFLICT (task, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING j.id INTO enqueue.id;
        IF FOUND THEN
            enqueue.created := true;
            IF is_waiting THEN
                PERFORM pgworkers.add_dependencies(enqueue.id, parents, enqueue.on_failed, failed);
            ELSIF NOT is_later AND (NOT is_own_transaction OR EXISTS (SELECT FROM pgworkers.idle_host a WHERE a.queue = enqueue.queue)) THEN
                PERFORM pgworkers.notify_ready(enqueue.queue, ARRAY[enqueue.task], CASE WHEN is_own_transaction THEN 1 END);
            ELSIF is_later AND due < now() + interval '10 s' THEN
                PERFORM pgworkers.notify('due:');
            END IF;
            EXIT;
        END IF;
        IF enqueue.on_conflict = 'replace' THEN
            UPDATE pgworkers.job j SET args = enqueue.args, meta = enqueue.meta
             WHERE j.task = enqueue.task AND j.unique_key = enqueue.unique_key AND j.state <> 'running'
               AND (may_replace OR j.enqueued_by = session_user)
            RETURNING j.id INTO enqueue.id;
            IF enqueue.id IS NULL AND NOT may_replace THEN
                PERFORM FROM pgworkers.job j
                  WHERE j.task = enqueue.task AND j.unique_key = enqueue.unique_key AND j.enqueued_by <> session_user;
                IF FOUND THEN
                    RAISE EXCEPTION 'another login enqueued the job that holds the unique key %, and % may not replace its arguments',
                        enqueue.unique_key, session_user
                        USING ERRCODE = 'insufficient_privilege',
                              HINT = 'pgworkers grants add ' || quote_ident(session_user) || ' --replace';
                END IF;
            END IF;
        END IF;
        IF enqueue.id IS NULL THEN
            SELECT j.id INTO enqueue.id FROM pgworkers.job j
             WHERE j.task = enqueue.task AND j.unique_key = enqueue.unique_key;
        END IF;
        IF enqueue.id IS NOT NULL THEN
            IF enqueue.on_conflict = 'raise' THEN
                RAISE EXCEPTION 'a live job (#%) already holds the unique key %', enqueue.id, enqueue.unique_key
                    USING ERRCODE = 'unique_violation', CONSTRAINT = 'job_unique', DETAIL = enqueue.id::text,
                          HINT = enqueue.unique_key;
            END IF;
            enqueue.created := false;
            EXIT;
        END IF;
        -- The holder of the key ended between the INSERT and the SELECT: try again.
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'the unique key % is held by a job this transaction cannot see; try again', enqueue.unique_key
                USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
    IF enqueue.idempotency_key IS NOT NULL THEN  -- an upsert, because it always uses the index
        INSERT INTO pgworkers.idempotency_key AS k (task, login, key, job_id, expires_at)
        VALUES (enqueue.task, key_login, enqueue.idempotency_key, enqueue.id, now())
        ON CONFLICT (task, login, key) DO UPDATE SET job_id = excluded.job_id;
    END IF;
END $$;

-- Enqueue a job that is ready now and has no options, at less cost than enqueue(). For callers that know the task and have checked the
-- arguments. `is_own_transaction`: the call is a transaction of its own. No search_path.
CREATE FUNCTION pgworkers.enqueue_plain(task text, args jsonb, queue text, priority integer, max_attempts integer,
                                      max_crashes integer, is_own_transaction boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    job_id pg_catalog.int8;
BEGIN
    IF NOT pg_catalog.has_any_column_privilege(session_user, 'pgworkers.job'::pg_catalog.regclass, 'INSERT') THEN
        SELECT e.id INTO job_id
          FROM pgworkers.enqueue(enqueue_plain.task, enqueue_plain.args, enqueue_plain.queue, enqueue_plain.priority,
                                 max_attempts => enqueue_plain.max_attempts, max_crashes => enqueue_plain.max_crashes) e;
        RETURN job_id;
    END IF;
    INSERT INTO pgworkers.job AS j (priority, queue, task, max_attempts, max_crashes, args)
    VALUES (enqueue_plain.priority, enqueue_plain.queue, enqueue_plain.task, enqueue_plain.max_attempts, enqueue_plain.max_crashes,
            enqueue_plain.args)
    RETURNING j.id INTO job_id;
    IF NOT enqueue_plain.is_own_transaction
       OR EXISTS (SELECT FROM pgworkers.idle_host a WHERE a.queue OPERATOR(pg_catalog.=) enqueue_plain.queue) THEN
        PERFORM pgworkers.notify_ready(enqueue_plain.queue, ARRAY[enqueue_plain.task], CASE WHEN enqueue_plain.is_own_transaction THEN 1 END);
    END IF;
    RETURN job_id;
END $$;

-- Enqueue the jobs that other jobs enqueued with their own end (ctx.enqueue). The statement that writes those ends calls it.
-- `children` has a list for each "id:lease"; `parents` are the keys of the ends that were written. Such jobs have neither unique keys
-- nor `after`.
CREATE FUNCTION pgworkers.enqueue_children(children jsonb, parents text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    child record;
BEGIN
    FOR child IN
        SELECT c.*
          FROM unnest(enqueue_children.parents) AS p (key)
         CROSS JOIN LATERAL jsonb_to_recordset(enqueue_children.children -> p.key)
               AS c (task text, args jsonb, queue text, priority integer, run_at timestamptz, delay double precision,
                     max_attempts integer, max_crashes integer, timeout double precision, memory bigint,
                     deadline double precision, expires double precision, concurrency_key text, meta jsonb)
    LOOP
        PERFORM pgworkers.enqueue(
            task => child.task, args => child.args, queue => child.queue, priority => child.priority, run_at => child.run_at,
            delay => make_interval(secs => child.delay), max_attempts => child.max_attempts, max_crashes => child.max_crashes,
            timeout => make_interval(secs => child.timeout), memory => child.memory,
            deadline => make_interval(secs => child.deadline), expires => make_interval(secs => child.expires),
            concurrency_key => child.concurrency_key, meta => child.meta);
    END LOOP;
END $$;

-- 4.3 Claim jobs behind limits ------------------------------------------------------------------------------------------------------
-- A claim of jobs without limits is one statement (job/claim.sql). Where there are limits it calls choose_claimed_jobs(), which calls
-- admit_limited_jobs():
--
--   1. Read the first jobs of each task (first_limited_jobs) and take those with free slots (free_slots_of_task, free_slots_of_key). Where these
--      are too few, search the groups of the task (limited_jobs). Choose the best jobs. This locks nothing.
--   2. Lock the limits of the chosen jobs: rows of `mutex`.
--   3. Count the slots again, now that no other claim can take one, and admit as many jobs as there are free slots.
--
-- While another session holds an old snapshot, vacuum removes nothing, and the indexes keep an entry for each job that ran since
-- then. Two tables keep the scans short nevertheless: `limit_scan_start` says where a count of slots begins, `group_scan_start`
-- where the first jobs of a group or of a task are. Both are optional and are made only after a scan has read many dead entries
-- (running_entries_read, limited_entries_read, task_entries_read).

-- The first `max_jobs` ready jobs of a group, in order, from its mark on. Without a mark, `from_priority` is higher than any priority,
-- and all jobs are in the last of the three parts. `>=` and `<=` instead of `=`: with an equals sign the planner could take the
-- primary key for the order. The order does not contain the group: there is only one, and computing its hash for each row takes longer
-- than reading the row. Inlined, no search_path.
CREATE FUNCTION pgworkers.limited_jobs(queue text, task text, group_hash bigint, from_priority bigint, first_id bigint, newest_id bigint, max_jobs bigint)
RETURNS TABLE (id bigint, key text, priority integer)
LANGUAGE sql STABLE ROWS 10 AS $$
SELECT j.id, j.key, j.priority
  FROM ((SELECT j.id, j.concurrency_key::text AS key, j.priority::integer AS priority FROM pgworkers.job j
          WHERE j.queue OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
            AND j.task OPERATOR(pg_catalog.=) $2 AND pgworkers.concurrency_group(j.concurrency_key) OPERATOR(pg_catalog.=) $3
            AND j.priority OPERATOR(pg_catalog.>) $4 AND j.id OPERATOR(pg_catalog.>) $6
            AND (j.expires_at IS NULL OR j.expires_at OPERATOR(pg_catalog.>) pg_catalog.now())
          ORDER BY j.priority DESC, j.id LIMIT $7)
        UNION ALL
        (SELECT j.id, j.concurrency_key::text, j.priority::integer FROM pgworkers.job j
          WHERE j.queue OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
            AND j.task OPERATOR(pg_catalog.=) $2 AND pgworkers.concurrency_group(j.concurrency_key) OPERATOR(pg_catalog.=) $3
            AND j.priority OPERATOR(pg_catalog.>=) $4 AND j.priority OPERATOR(pg_catalog.<=) $4 AND j.id OPERATOR(pg_catalog.>=) $5
            AND (j.expires_at IS NULL OR j.expires_at OPERATOR(pg_catalog.>) pg_catalog.now())
          ORDER BY j.priority DESC, j.id LIMIT $7)
        UNION ALL
        (SELECT j.id, j.concurrency_key::text, j.priority::integer FROM pgworkers.job j
          WHERE j.queue OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
            AND j.task OPERATOR(pg_catalog.=) $2 AND pgworkers.concurrency_group(j.concurrency_key) OPERATOR(pg_catalog.=) $3
            AND j.priority OPERATOR(pg_catalog.<) $4
            AND (j.expires_at IS NULL OR j.expires_at OPERATOR(pg_catalog.>) pg_catalog.now())
          ORDER BY j.priority DESC, j.id LIMIT $7)) j
 LIMIT $7
$$;

-- The same for all groups of a task, by the index job_ready_by_task.
CREATE FUNCTION pgworkers.first_limited_jobs(queue text, task text, from_priority bigint, first_id bigint, newest_id bigint, max_jobs bigint)
RETURNS TABLE (id bigint, key text, priority integer)
LANGUAGE sql STABLE ROWS 100 AS $$
SELECT j.id, j.key, j.priority
  FROM ((SELECT j.id, j.concurrency_key::text AS key, j.priority::integer AS priority FROM pgworkers.job j
          WHERE j.queue OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'ready'
            AND coalesce(j.behind_limit OR j.concurrency_key IS NOT NULL, false) AND j.task OPERATOR(pg_catalog.=) $2
            AND j.priority OPERATOR(pg_catalog.>) $3 AND j.id OPERATOR(pg_catalog.>) $5
            AND (j.expires_at IS NULL OR j.expires_at OPERATOR(pg_catalog.>) pg_catalog.now())
          ORDER BY j.priority DESC, j.id LIMIT $6)
        UNION ALL
        (SELECT j.id, j.concurrency_key::text, j.priority::integer FROM pgworkers.job j
          WHERE j.queue OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'ready'
            AND coalesce(j.behind_limit OR j.concurrency_key IS NOT NULL, false) AND j.task OPERATOR(pg_catalog.=) $2
            AND j.priority OPERATOR(pg_catalog.>=) $3 AND j.priority OPERATOR(pg_catalog.<=) $3 AND j.id OPERATOR(pg_catalog.>=) $4
            AND (j.expires_at IS NULL OR j.expires_at OPERATOR(pg_catalog.>) pg_catalog.now())
          ORDER BY j.priority DESC, j.id LIMIT $6)
        UNION ALL
        (SELECT j.id, j.concurrency_key::text, j.priority::integer FROM pgworkers.job j
          WHERE j.queue OPERATOR(pg_catalog.=) $1 AND j.state OPERATOR(pg_catalog.=) 'ready'
            AND coalesce(j.behind_limit OR j.concurrency_key IS NOT NULL, false) AND j.task OPERATOR(pg_catalog.=) $2
            AND j.priority OPERATOR(pg_catalog.<) $3
            AND (j.expires_at IS NULL OR j.expires_at OPERATOR(pg_catalog.>) pg_catalog.now())
          ORDER BY j.priority DESC, j.id LIMIT $6)) j
 LIMIT $6
$$;

-- How many more jobs of a task may run (NULL: no limit), how many run, and the mark from which they were counted. It returns a set
-- and has no search_path, so that it is inlined.
CREATE FUNCTION pgworkers.free_slots_of_task(task text) RETURNS TABLE (free bigint, used bigint, since timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
SELECT l.slots OPERATOR(pg_catalog.-) u.used, u.used, u.since
  FROM (SELECT coalesce((SELECT c.slots FROM pgworkers.concurrency c
                          WHERE c.kind OPERATOR(pg_catalog.=) 'task' AND c.name OPERATOR(pg_catalog.=) $1),
                        (SELECT t.concurrency FROM pgworkers.task t WHERE t.name OPERATOR(pg_catalog.=) $1)) AS slots
        OFFSET 0) l  -- computed once, not at each use
  LEFT JOIN LATERAL (
       SELECT m.since,
              (SELECT pg_catalog.count(*)
                 FROM (SELECT FROM pgworkers.job j
                        WHERE j.task OPERATOR(pg_catalog.=) $1 AND j.claimed_at OPERATOR(pg_catalog.>=) coalesce(m.since, '-infinity')
                          AND coalesce(j.host IS NOT NULL AND (j.behind_limit OR j.concurrency_key IS NOT NULL), false)
                        ORDER BY j.claimed_at LIMIT l.slots) newer)
              OPERATOR(pg_catalog.+)
              (SELECT pg_catalog.count(*)
                 FROM pg_catalog.unnest(m.older_running_ids) AS o (id)
                CROSS JOIN LATERAL (
                      SELECT FROM pgworkers.job j
                       WHERE j.id OPERATOR(pg_catalog.=) o.id AND j.task OPERATOR(pg_catalog.=) $1
                         AND coalesce(j.host IS NOT NULL, false) AND j.claimed_at OPERATOR(pg_catalog.<) m.since LIMIT 1) old_one) AS used
         FROM (SELECT) one
         LEFT JOIN LATERAL (SELECT m.since, m.older_running_ids FROM pgworkers.limit_scan_start m
                             WHERE m.kind OPERATOR(pg_catalog.=) 'task' AND m.name OPERATOR(pg_catalog.=) $1
                             ORDER BY m.nth DESC LIMIT 1) m ON true
        WHERE l.slots IS NOT NULL
       OFFSET 0) u ON true
$$;
-- The same for a concurrency key. A key without any limit has one slot.
CREATE FUNCTION pgworkers.free_slots_of_key(task text, key text) RETURNS TABLE (free bigint, used bigint, since timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
SELECT l.slots OPERATOR(pg_catalog.-) u.used, u.used, u.since
  FROM (SELECT CASE WHEN $2 IS NOT NULL THEN
               coalesce((SELECT c.slots FROM pgworkers.concurrency c
                          WHERE c.kind OPERATOR(pg_catalog.=) 'key' AND c.name OPERATOR(pg_catalog.=) $2),
                        (SELECT t.concurrency_per_key FROM pgworkers.task t WHERE t.name OPERATOR(pg_catalog.=) $1), 1) END AS slots
        OFFSET 0) l
  LEFT JOIN LATERAL (
       SELECT m.since,
              (SELECT pg_catalog.count(*)
                 FROM (SELECT FROM pgworkers.job j
                        WHERE j.concurrency_key OPERATOR(pg_catalog.=) $2
                          AND j.claimed_at OPERATOR(pg_catalog.>=) coalesce(m.since, '-infinity')
                          AND coalesce(j.host IS NOT NULL AND j.concurrency_key IS NOT NULL, false)
                        ORDER BY j.claimed_at LIMIT l.slots) newer)
              OPERATOR(pg_catalog.+)
              (SELECT pg_catalog.count(*)
                 FROM pg_catalog.unnest(m.older_running_ids) AS o (id)
                CROSS JOIN LATERAL (
                      SELECT FROM pgworkers.job j
                       WHERE j.id OPERATOR(pg_catalog.=) o.id AND j.concurrency_key OPERATOR(pg_catalog.=) $2
                         AND coalesce(j.host IS NOT NULL, false) AND j.claimed_at OPERATOR(pg_catalog.<) m.since LIMIT 1) old_one) AS used
         FROM (SELECT) one
         LEFT JOIN LATERAL (SELECT m.since, m.older_running_ids FROM pgworkers.limit_scan_start m
                             WHERE m.kind OPERATOR(pg_catalog.=) 'key' AND m.name OPERATOR(pg_catalog.=) $2
                             ORDER BY m.nth DESC LIMIT 1) m ON true
        WHERE l.slots IS NOT NULL
       OFFSET 0) u ON true
$$;

-- The row of `mutex` that stands for a limit; several limits may share a row. A claim calls it for each job, so it is inlined.
CREATE FUNCTION pgworkers.limit_mutex(kind text, name text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
SELECT (pg_catalog.hashtextextended($1 OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||) $2, 0) OPERATOR(pg_catalog.&) 1023)::integer
$$;

-- How many index entries of running jobs this transaction has read so far to count slots, with those of jobs that no longer run.
CREATE FUNCTION pgworkers.running_entries_read() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT pg_stat_get_xact_tuples_returned('pgworkers.job_running_by_task'::regclass)
     + pg_stat_get_xact_tuples_returned('pgworkers.job_running_by_key'::regclass)
$$;

-- How many index entries of waiting jobs behind limits this transaction has read so far.
CREATE FUNCTION pgworkers.limited_entries_read() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT pg_stat_get_xact_tuples_returned('pgworkers.job_ready_limited'::regclass)
$$;

-- The same, by the index of first_limited_jobs().
CREATE FUNCTION pgworkers.task_entries_read() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT pg_stat_get_xact_tuples_returned('pgworkers.job_ready_by_task'::regclass)
$$;

-- Set a mark for each of these limits whose count reads many entries of jobs that no longer run. The caller holds the limits (rows of
-- `mutex`): each claim behind them has committed and is visible to the statements below, and the next one begins after this
-- transaction. A claim that began before the mark was made may come after it; admit_limited_jobs() leaves such a limit to the next
-- claim.
CREATE FUNCTION pgworkers.remember_limit_scans(tasks text[], keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    scanned    record;
    read_before bigint;
    running_ids bigint[];
BEGIN
    FOR scanned IN
        SELECT l.kind, l.name, m.nth, m.since, m.older_running_ids
          FROM (SELECT 'task' AS kind, t.name FROM unnest(remember_limit_scans.tasks) AS t (name)
                UNION SELECT 'key', k.name FROM unnest(remember_limit_scans.keys) AS k (name) WHERE k.name IS NOT NULL) l
          LEFT JOIN LATERAL (SELECT * FROM pgworkers.limit_scan_start m
                              WHERE m.kind = l.kind AND m.name = l.name ORDER BY m.nth DESC LIMIT 1) m ON true
         WHERE m.since IS NULL OR m.since <= now()
    LOOP
        read_before := pgworkers.running_entries_read();
        IF scanned.kind = 'task' THEN
            running_ids := ARRAY(SELECT j.id FROM pgworkers.job j
                             WHERE j.task = scanned.name AND j.claimed_at >= coalesce(scanned.since, '-infinity')
                               AND coalesce(j.host IS NOT NULL AND (j.behind_limit OR j.concurrency_key IS NOT NULL), false)
                             ORDER BY j.claimed_at);
        ELSE
            running_ids := ARRAY(SELECT j.id FROM pgworkers.job j
                             WHERE j.concurrency_key = scanned.name AND j.claimed_at >= coalesce(scanned.since, '-infinity')
                               AND coalesce(j.host IS NOT NULL AND j.concurrency_key IS NOT NULL, false)
                             ORDER BY j.claimed_at);
        END IF;
        CONTINUE WHEN pgworkers.running_entries_read() - read_before - cardinality(running_ids) <= 20;
        running_ids := running_ids || ARRAY(SELECT o.id FROM unnest(scanned.older_running_ids) AS o (id)
                                   WHERE EXISTS (SELECT FROM pgworkers.job j
                                                  WHERE j.id = o.id AND coalesce(j.host IS NOT NULL, false) AND j.claimed_at < scanned.since LIMIT 1));
        INSERT INTO pgworkers.limit_scan_start (kind, name, since, older_running_ids) VALUES (scanned.kind, scanned.name, now(), running_ids);
        DELETE FROM pgworkers.limit_scan_start m WHERE m.kind = scanned.kind AND m.name = scanned.name AND m.nth <= scanned.nth;
    END LOOP;
END $$;

-- Move the marks of these groups to their first jobs, so that claims do not read many entries of jobs that were claimed.
-- A mark moves on to the first ready job behind it. When the mark is due, or when nothing is ready behind it, the group is scanned
-- from its head. That reads all entries that vacuum could not remove, so the next scan from the head is due after 300 times as long as
-- it takes for all groups of a claim (`group_count` of them), at most after 5 s. A call begins no scan from a head after it has spent
-- 20 ms on them, so that a claim does not wait for all groups at once; the next claims scan the others. Returns true if a group has
-- jobs that the caller could not see from its mark.
CREATE FUNCTION pgworkers.remember_group_scans(queues text[], tasks text[], group_hashes bigint[], group_count integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    scan      record;
    head     record;
    read_before   bigint;
    started_at    timestamptz;
    spent    interval := '0';
    has_hidden_jobs boolean := false;
    newest_id bigint := coalesce(pg_sequence_last_value(pg_get_serial_sequence('pgworkers.job', 'id')::regclass), 0);
BEGIN
    FOR scan IN
        SELECT l.queue, l.task, l.group_hash, m.nth, m.priority, m.first_id, m.newest_id, m.valid_until
          FROM unnest(remember_group_scans.queues, remember_group_scans.tasks, remember_group_scans.group_hashes) AS l (queue, task, group_hash)
          LEFT JOIN LATERAL (SELECT * FROM pgworkers.group_scan_start m
                              WHERE m.queue = l.queue AND m.task = l.task AND m.group_hash = l.group_hash ORDER BY m.nth DESC LIMIT 1) m ON true
         ORDER BY m.valid_until NULLS FIRST
    LOOP
        IF scan.nth IS NOT NULL THEN
            read_before := pgworkers.limited_entries_read();
            SELECT j.id, j.priority INTO head
              FROM pgworkers.limited_jobs(scan.queue, scan.task, scan.group_hash, scan.priority, scan.first_id, scan.newest_id, 1) j;
            IF FOUND AND (scan.valid_until > clock_timestamp() OR spent > interval '20 ms') THEN
                CONTINUE WHEN pgworkers.limited_entries_read() - read_before <= 20;
                INSERT INTO pgworkers.group_scan_start (queue, task, group_hash, priority, first_id, newest_id, valid_until)
                VALUES (scan.queue, scan.task, scan.group_hash, head.priority, head.id, newest_id, scan.valid_until);
                DELETE FROM pgworkers.group_scan_start m
                 WHERE m.queue = scan.queue AND m.task = scan.task AND m.group_hash = scan.group_hash AND m.nth <= scan.nth;
                CONTINUE;
            END IF;
            IF NOT FOUND THEN
                has_hidden_jobs := true;
            END IF;
        END IF;
        CONTINUE WHEN spent > interval '20 ms';
        read_before := pgworkers.limited_entries_read();
        started_at := clock_timestamp();
        SELECT j.id, j.priority INTO head FROM pgworkers.limited_jobs(scan.queue, scan.task, scan.group_hash, 1::bigint << 31, 0, 0, 1) j;
        spent := spent + (clock_timestamp() - started_at);
        IF FOUND AND pgworkers.limited_entries_read() - read_before > 20 THEN
            INSERT INTO pgworkers.group_scan_start (queue, task, group_hash, priority, first_id, newest_id, valid_until)
            VALUES (scan.queue, scan.task, scan.group_hash, head.priority, head.id, newest_id,
                    clock_timestamp() + least(300 * group_count * (clock_timestamp() - started_at), interval '5 s'));
        END IF;
        DELETE FROM pgworkers.group_scan_start m
         WHERE m.queue = scan.queue AND m.task = scan.task AND m.group_hash = scan.group_hash AND m.nth <= scan.nth;
    END LOOP;
    RETURN has_hidden_jobs;
END $$;

-- Move the marks of these tasks to their first jobs: those that a claim has read first (`priorities`, `ids`; NULL: none), or, when
-- a scan from the head is due, those that it finds. The next one is due after 5 s, or after twenty times as long as it took. If the
-- first job of a task cannot run for long, the entries of all that were claimed since then lie behind it. When
-- `has_many_dead_entries`, they are counted, and from 20,000 on, claims search the groups of the task instead, until the next scan
-- from the head. `max_jobs`: how many jobs of each task a claim reads. `newest_id`: the newest job when the claim began.
CREATE FUNCTION pgworkers.remember_task_scans(queues text[], tasks text[], max_jobs bigint[], priorities bigint[], ids bigint[], newest_id bigint,
                                              has_many_dead_entries boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    scan        record;
    head        record;
    read_before bigint;
    jobs_read   bigint;
    is_needed   boolean;
    is_passed   boolean;
    started_at  timestamptz;
BEGIN
    FOR scan IN
        SELECT t.queue, t.task, t.max_jobs, t.priority, t.id, m.nth, m.first_id, m.valid_until, m.valid_until <= clock_timestamp() AS is_due
          FROM unnest(remember_task_scans.queues, remember_task_scans.tasks, remember_task_scans.max_jobs, remember_task_scans.priorities,
                      remember_task_scans.ids) AS t (queue, task, max_jobs, priority, id)
          LEFT JOIN LATERAL (SELECT * FROM pgworkers.group_scan_start m
                              WHERE m.queue = t.queue AND m.task = t.task AND m.group_hash IS NULL ORDER BY m.nth DESC LIMIT 1) m ON true
         WHERE t.id IS NOT NULL OR m.valid_until <= clock_timestamp()
    LOOP
        started_at := clock_timestamp();
        read_before := pgworkers.task_entries_read();
        IF scan.is_due THEN
            SELECT j.id, j.priority::bigint AS priority INTO head FROM pgworkers.first_limited_jobs(scan.queue, scan.task, 1::bigint << 31, 0, 0, 1) j;
            is_needed := FOUND AND pgworkers.task_entries_read() - read_before > 100;
        ELSE
            SELECT scan.id, scan.priority INTO head;
            is_needed := scan.first_id IS DISTINCT FROM scan.id;
        END IF;
        is_passed := false;
        IF remember_task_scans.has_many_dead_entries AND head.id IS NOT NULL THEN
            read_before := pgworkers.task_entries_read();
            SELECT count(*) INTO jobs_read
              FROM pgworkers.first_limited_jobs(scan.queue, scan.task, head.priority, head.id, remember_task_scans.newest_id, scan.max_jobs);
            is_passed := pgworkers.task_entries_read() - read_before - jobs_read > 20000;
        END IF;
        CONTINUE WHEN NOT (is_needed OR is_passed OR scan.is_due);
        IF is_needed OR is_passed THEN
            INSERT INTO pgworkers.group_scan_start (queue, task, priority, first_id, newest_id, valid_until)
            VALUES (scan.queue, scan.task, CASE WHEN NOT is_passed THEN head.priority END, head.id, remember_task_scans.newest_id,
                    CASE WHEN scan.is_due IS FALSE THEN scan.valid_until
                         ELSE clock_timestamp() + greatest(interval '5 s', 20 * (clock_timestamp() - started_at)) END);
        END IF;
        DELETE FROM pgworkers.group_scan_start m
         WHERE m.queue = scan.queue AND m.task = scan.task AND m.group_hash IS NULL AND m.nth = scan.nth;
    END LOOP;
END $$;

-- Count the running jobs of a task that are not counted yet (index job_running). Rows that another session has locked are skipped.
-- A mark of the limit may be younger than their claims, so it is deleted.
CREATE FUNCTION pgworkers.set_running_limited(task text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    UPDATE pgworkers.job j SET behind_limit = true
     WHERE j.ctid = ANY (ARRAY(SELECT j.ctid FROM pgworkers.job j
                                WHERE j.host IS NOT NULL AND j.task = set_running_limited.task AND NOT j.behind_limit FOR UPDATE SKIP LOCKED));
    IF FOUND THEN
        DELETE FROM pgworkers.limit_scan_start m WHERE m.kind = 'task' AND m.name = set_running_limited.task;
    END IF;
END $$;

-- Count the jobs of a task that already run when a limit is set for it. The limit is locked, so claims at the same time leave its jobs
-- to later claims: none may count, or make a mark, without these jobs. What is missed here, because another session has it locked or
-- is claiming it, is found by uncounted_running_jobs().
CREATE FUNCTION pgworkers.limit_running_jobs(task text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM pgworkers.mutex m WHERE m.id = pgworkers.limit_mutex('task', limit_running_jobs.task) FOR UPDATE;
    PERFORM pgworkers.set_running_limited(limit_running_jobs.task);
    DELETE FROM pgworkers.limit_scan_start m WHERE m.kind = 'task' AND m.name = limit_running_jobs.task;
    INSERT INTO pgworkers.recent_limit AS n (task) VALUES (limit_running_jobs.task)
    ON CONFLICT (task) DO UPDATE SET since = excluded.since, older_transactions = NULL;
END $$;

-- How many jobs of a task with a new limit run and are not counted because another session has them locked. NULL: claims that began
-- before the limit was set may still run, so the number is unknown. This does not wait for such claims: the jobs behind the limit are
-- left to the next claim, for a second at most. After that second they no longer wait, but what the old claim takes is counted as soon
-- as it has committed. A claim ends within a minute (statement_timeout). Called with the limit locked. A claim has the lock
-- RowExclusiveLock on `job` before its snapshot is made, and until all sessions see what it wrote. So each claim that cannot see the
-- limit has that lock when the first one that can see it calls this. (Other writers of `job` have the lock, too.)
CREATE FUNCTION pgworkers.uncounted_running_jobs(task text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    new_limit    pgworkers.recent_limit;
    open_claims   text[];
    uncounted bigint;
BEGIN
    SELECT n.* INTO new_limit FROM pgworkers.recent_limit n WHERE n.task = uncounted_running_jobs.task;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    open_claims := ARRAY(SELECT DISTINCT l.virtualtransaction FROM pg_locks l
                   WHERE l.locktype = 'relation' AND l.relation = 'pgworkers.job'::regclass AND l.mode = 'RowExclusiveLock'
                     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                     AND l.pid IS DISTINCT FROM pg_backend_pid()
                     AND (new_limit.older_transactions IS NULL OR l.virtualtransaction = ANY (new_limit.older_transactions)));
    -- After reading the locks: these statements see what a session wrote that has released its lock.
    PERFORM pgworkers.set_running_limited(uncounted_running_jobs.task);
    SELECT count(*) INTO uncounted FROM pgworkers.job j WHERE j.host IS NOT NULL AND j.task = uncounted_running_jobs.task AND NOT j.behind_limit;
    IF uncounted = 0 AND (open_claims = '{}' OR new_limit.since < clock_timestamp() - interval '1 minute') THEN
        DELETE FROM pgworkers.recent_limit n WHERE n.task = uncounted_running_jobs.task;
    ELSIF new_limit.older_transactions IS DISTINCT FROM open_claims THEN
        UPDATE pgworkers.recent_limit n SET older_transactions = open_claims WHERE n.task = uncounted_running_jobs.task;
    END IF;
    RETURN CASE WHEN open_claims = '{}' OR new_limit.since < clock_timestamp() - interval '1 s' THEN uncounted END;
END $$;

-- Choose which of the jobs behind limits may be claimed now: up to `counts` of each queue, locked. The caller claims them, or some
-- of them, in the same transaction. Two claims cannot both take the last slot: the limits of the chosen jobs are locked (rows of
-- `mutex`) until the end of the transaction, and the slots are counted after that, in a snapshot that sees what earlier claims
-- committed. (That is why this is a volatile function: inside one plain statement the snapshot would be older than the lock.) A
-- limit that another claim holds is not waited for: its jobs are left to the next claim, which is notified. So jobs without a
-- limit, or with another one, never wait. The first jobs of each queue and task are read in order, half as many again as may run.
-- If enough of them have a free slot, these are the jobs. Otherwise, and with `oldest_first`, the groups of the task are searched:
-- up to `max_groups` groups with free slots (or as many as jobs are wanted, if that is more) are compared by priority and age. If
-- there are more, they take turns. To find them a call skips up to fifty times as many groups without a free slot, over all queues
-- and tasks. A task without a free slot, or that is not among `tasks`, is skipped as a whole.
CREATE FUNCTION pgworkers.admit_limited_jobs(queues text[], counts integer[], tasks text[], oldest_first boolean, max_groups integer)
RETURNS TABLE (at tid, queue text, priority integer, id bigint, run_at timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    first_group   bigint := ((random() - 0.5) * 1.8e19)::bigint;  -- the search begins at this hash, and goes round
    chosen_tasks  text[];     -- of the chosen jobs, in the order in which they should run: their tasks,
    chosen_keys   text[];     -- their keys,
    chosen_ids    bigint[];   -- their ids
    admitted_ids  bigint[];   -- those of them that there are free slots for
    locked_limits integer[];  -- rows of mutex
    entries_before bigint;    -- index entries of waiting jobs that were read before, by group
    task_entries_before bigint; -- and by task
    first_queues  text[];     -- of the tasks whose first jobs were read: their queues,
    first_tasks   text[];     -- their names,
    first_counts  bigint[];   -- how many jobs were asked for,
    first_priorities bigint[]; -- the priority of the first one,
    first_ids     bigint[];   -- and its id;
    first_jobs_read bigint;   -- how many jobs were read of all of these tasks,
    is_task_scan_due boolean; -- whether one should be scanned from its head,
    newest_id     bigint;     -- and the newest job before they were read
    group_queues  text[];     -- of the groups with free slots: their queues,
    group_tasks   text[];     -- their tasks,
    group_hashes  bigint[];   -- their hashes,
    group_count   integer;    -- and how many there are
    due_groups    integer[];  -- positions in these arrays of the groups that should be scanned from their heads
    dead_entries  bigint;     -- index entries that the counts read, without those of jobs that run
    is_mark_newer boolean;    -- whether a limit was marked after this transaction began
    new_limit_tasks text[];   -- tasks whose limit is new,
    uncounted     bigint[];   -- and how many jobs of each run and are not counted; NULL: unknown
BEGIN
    entries_before := pgworkers.limited_entries_read();
    task_entries_before := pgworkers.task_entries_read();
    newest_id := coalesce(pg_sequence_last_value('pgworkers.job_id_seq'::regclass), 0);
    WITH RECURSIVE waiting_tasks AS (
        -- The tasks of each queue that have waiting jobs. Goes from a task to the next one that this host knows, so one probe skips
        -- all unknown names between two known ones. Here and below backwards: the newest job of a task or group is found at once,
        -- but before the oldest one are the dead entries of all jobs that were claimed while a snapshot is held.
        SELECT w.queue, w.count, NULL::text AS task, (SELECT max(k.name) FROM unnest(admit_limited_jobs.tasks) AS k (name)) AS next
          FROM unnest(admit_limited_jobs.queues, admit_limited_jobs.counts) AS w (queue, count)
        UNION ALL
        SELECT w.queue, w.count, j.task, (SELECT max(k.name) FROM unnest(admit_limited_jobs.tasks) AS k (name) WHERE k.name < j.task)
          FROM waiting_tasks w
         CROSS JOIN LATERAL (
               SELECT j.task::text AS task FROM pgworkers.job j
                WHERE j.queue = w.queue AND j.state = 'ready' AND coalesce(j.behind_limit OR j.concurrency_key IS NOT NULL, false)
                  AND j.task <= w.next
                ORDER BY j.task DESC LIMIT 1) j
    ),
    open_tasks AS MATERIALIZED (
        SELECT w.queue, w.count, w.task, r.free AS task_free,
               greatest(admit_limited_jobs.max_groups, 50 * admit_limited_jobs.max_groups / count(*) OVER ()) AS max_seen,
               coalesce(m.priority, 1::bigint << 31) AS from_priority, m.first_id, m.newest_id, m.valid_until,
               CASE WHEN admit_limited_jobs.oldest_first OR m.valid_until IS NOT NULL AND m.priority IS NULL
                    THEN 0 ELSE 10 + 3 * least(w.count, r.free) / 2 END AS first_count
          FROM waiting_tasks w
         CROSS JOIN LATERAL pgworkers.free_slots_of_task(w.task) r
          LEFT JOIN LATERAL (SELECT m.priority, m.first_id, m.newest_id, m.valid_until FROM pgworkers.group_scan_start m
                              WHERE m.queue = w.queue AND m.task = w.task AND m.group_hash IS NULL
                              ORDER BY m.nth DESC LIMIT 1) m ON true
         WHERE w.task = ANY (admit_limited_jobs.tasks) AND (r.free IS NULL OR r.free > 0)
    ),
    searched_tasks AS MATERIALIZED (
        -- Each task with those of its first jobs that have a free slot. Each key is counted once, for the first of its jobs: a
        -- window gives the others the same number. (A join by nested loops would compare each job with each key.)
        SELECT t.*, f.first_priority, f.first_job, f.keys, f.ids, f.priorities, f.jobs_read,
               t.first_count = 0 OR coalesce(cardinality(f.ids), 0) < least(t.count, t.task_free)
                                AND (f.jobs_read >= t.first_count OR t.valid_until IS NOT NULL) AS needs_groups
          FROM open_tasks t
         CROSS JOIN LATERAL (
               SELECT (array_agg(j.priority))[1] AS first_priority, (array_agg(j.id))[1] AS first_job,
                      (array_agg(j.key) FILTER (WHERE j.is_open))[1:least(t.count, t.task_free)] AS keys,
                      (array_agg(j.id) FILTER (WHERE j.is_open))[1:least(t.count, t.task_free)] AS ids,
                      (array_agg(j.priority) FILTER (WHERE j.is_open))[1:least(t.count, t.task_free)] AS priorities, count(*) AS jobs_read
                 FROM (SELECT j.*, coalesce(j.nth_of_key <= max(r.free) OVER (PARTITION BY j.key), true) AS is_open
                         FROM (SELECT j.*, row_number() OVER (PARTITION BY j.key ORDER BY j.priority DESC, j.id) AS nth_of_key
                                 FROM pgworkers.first_limited_jobs(t.queue, t.task, t.from_priority, t.first_id, t.newest_id, t.first_count) j) j
                         LEFT JOIN LATERAL (SELECT r.free FROM pgworkers.free_slots_of_key(t.task, j.key) r
                                             WHERE j.nth_of_key = 1 OFFSET 0) r ON true
                        ORDER BY j.priority DESC, j.id) j) f
    ),
    groups AS (
        SELECT t.queue, t.count, t.task, t.task_free, t.max_seen, first_group AS group_hash, false AS wrapped, 0::bigint AS key_free, 0 AS seen, 0 AS open
          FROM searched_tasks t WHERE t.needs_groups
        UNION ALL
        SELECT l.queue, l.count, l.task, l.task_free, l.max_seen, n.group_hash, n.wrapped, r.free, l.seen + 1,
               l.open + CASE WHEN r.free <= 0 THEN 0 ELSE 1 END
          FROM groups l
         CROSS JOIN LATERAL (
               SELECT * FROM (
                   (SELECT pgworkers.concurrency_group(j.concurrency_key) AS group_hash, l.wrapped, j.concurrency_key AS key
                      FROM pgworkers.job j
                     WHERE j.queue = l.queue AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
                       AND j.task = l.task AND pgworkers.concurrency_group(j.concurrency_key) < l.group_hash
                       AND pgworkers.concurrency_group(j.concurrency_key) >= CASE WHEN l.wrapped THEN first_group ELSE '-9223372036854775808' END
                     ORDER BY pgworkers.concurrency_group(j.concurrency_key) DESC, j.priority, j.id DESC LIMIT 1)
                   UNION ALL
                   (SELECT pgworkers.concurrency_group(j.concurrency_key), true, j.concurrency_key
                      FROM pgworkers.job j
                     WHERE NOT l.wrapped AND j.queue = l.queue AND j.state = 'ready'
                       AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
                       AND j.task = l.task AND pgworkers.concurrency_group(j.concurrency_key) >= first_group
                     ORDER BY pgworkers.concurrency_group(j.concurrency_key) DESC, j.priority, j.id DESC LIMIT 1)
                   ) next
                LIMIT 1) n
         CROSS JOIN LATERAL pgworkers.free_slots_of_key(l.task, n.key) r
         WHERE l.seen < l.max_seen AND l.open < greatest(admit_limited_jobs.max_groups, l.count)
    ),
    open_groups AS MATERIALIZED (
        -- `read_first`: how many jobs of each group are read at first: more than an equal share of the jobs that are wanted.
        SELECT l.queue, l.count, l.task, l.task_free, l.group_hash, l.group_free,
               least(l.group_free, 1 + 3 * l.count / (2 * count(*) OVER (PARTITION BY l.queue))) AS read_first,
               coalesce(m.priority, 1::bigint << 31) AS from_priority, m.first_id, m.newest_id, m.valid_until
          FROM (SELECT l.*, least(l.task_free, l.key_free, l.count) AS group_free FROM groups l WHERE l.seen > 0) l
          LEFT JOIN LATERAL (SELECT m.priority, m.first_id, m.newest_id, m.valid_until FROM pgworkers.group_scan_start m
                              WHERE m.queue = l.queue AND m.task = l.task AND m.group_hash = l.group_hash
                              ORDER BY m.nth DESC LIMIT 1) m ON true
         WHERE l.group_free > 0
    ),
    heads AS MATERIALIZED (
        SELECT l.*, j.key, j.id, CASE WHEN admit_limited_jobs.oldest_first THEN 0 ELSE -j.priority::bigint END AS rank, j.nth_of_group
          FROM open_groups l
         CROSS JOIN LATERAL (
               SELECT j.*, row_number() OVER () AS nth_of_group
                 FROM pgworkers.limited_jobs(l.queue, l.task, l.group_hash, l.from_priority, l.first_id, l.newest_id, l.read_first) j) j
    ),
    ranked AS (
        SELECT h.*, row_number() OVER (PARTITION BY h.queue ORDER BY h.rank, h.id) AS nth FROM heads h
    ),
    waiting AS (
        SELECT w.*, row_number() OVER (PARTITION BY w.task ORDER BY w.rank, w.id) AS nth_of_task
          FROM (SELECT t.queue, t.count, t.task_free, t.task, j.key, j.id,
                       CASE WHEN admit_limited_jobs.oldest_first THEN 0 ELSE -j.priority::bigint END AS rank
                  FROM searched_tasks t
                 CROSS JOIN LATERAL unnest(t.keys, t.ids, t.priorities) AS j (key, id, priority)
                 WHERE NOT t.needs_groups
                UNION ALL
                SELECT h.queue, h.count, h.task_free, h.task, h.key, h.id, h.rank FROM heads h
                UNION ALL
                -- If all jobs that were read of a group are among the best, it may have more of them.
                SELECT l.queue, l.count, l.task_free, l.task, j.key, j.id, CASE WHEN admit_limited_jobs.oldest_first THEN 0 ELSE -j.priority::bigint END
                  FROM ranked l
                 CROSS JOIN LATERAL (
                       SELECT * FROM pgworkers.limited_jobs(l.queue, l.task, l.group_hash, l.from_priority, l.first_id, l.newest_id, l.group_free) OFFSET l.read_first) j
                 WHERE l.nth_of_group = l.read_first AND l.nth <= l.count AND l.read_first < l.group_free) w
    ),
    chosen AS (
        SELECT w.count, w.task, w.key, w.id, row_number() OVER (PARTITION BY w.queue ORDER BY w.rank, w.id) AS nth
          FROM waiting w WHERE w.task_free IS NULL OR w.nth_of_task <= w.task_free
    )
    SELECT array_agg(c.task ORDER BY c.nth), array_agg(c.key ORDER BY c.nth), array_agg(c.id ORDER BY c.nth),
           (SELECT array_agg(l.queue) FROM open_groups l), (SELECT array_agg(l.task) FROM open_groups l),
           (SELECT array_agg(l.group_hash) FROM open_groups l),
           (SELECT array_agg(t.queue) FROM searched_tasks t), (SELECT array_agg(t.task) FROM searched_tasks t),
           (SELECT array_agg(t.first_count) FROM searched_tasks t), (SELECT array_agg(t.first_priority) FROM searched_tasks t),
           (SELECT array_agg(t.first_job) FROM searched_tasks t), (SELECT sum(t.jobs_read) FROM searched_tasks t),
           (SELECT bool_or(t.valid_until <= clock_timestamp()) FROM searched_tasks t),
           (SELECT array_agg(l.nth)
              FROM (SELECT l.*, row_number() OVER () AS nth FROM open_groups l) l
             WHERE l.valid_until <= clock_timestamp()
                OR l.valid_until IS NOT NULL AND NOT EXISTS (SELECT FROM heads h WHERE h.queue = l.queue AND h.task = l.task AND h.group_hash = l.group_hash))
      INTO chosen_tasks, chosen_keys, chosen_ids, group_queues, group_tasks, group_hashes,
           first_queues, first_tasks, first_counts, first_priorities, first_ids, first_jobs_read, is_task_scan_due, due_groups
      FROM chosen c WHERE c.nth <= c.count;
    -- A mark is worth its cost from about a thousand dead entries of a task, and from about twenty in a group.
    dead_entries := pgworkers.task_entries_read() - task_entries_before - coalesce(first_jobs_read, 0);
    IF is_task_scan_due OR dead_entries > 1000 + 100 * coalesce(cardinality(first_tasks), 0) THEN
        PERFORM pgworkers.remember_task_scans(first_queues, first_tasks, first_counts, first_priorities, first_ids, newest_id, dead_entries > 20000);
    END IF;
    group_count := coalesce(cardinality(group_hashes), 0);
    IF pgworkers.limited_entries_read() - entries_before <= 1000 + 2 * coalesce(cardinality(chosen_ids), 0) + 20 * group_count THEN
        group_queues := ARRAY(SELECT group_queues[d.nth] FROM unnest(due_groups) AS d (nth));
        group_tasks := ARRAY(SELECT group_tasks[d.nth] FROM unnest(due_groups) AS d (nth));
        group_hashes := ARRAY(SELECT group_hashes[d.nth] FROM unnest(due_groups) AS d (nth));
    END IF;
    IF cardinality(group_hashes) > 0 AND pgworkers.remember_group_scans(group_queues, group_tasks, group_hashes, group_count) THEN
        PERFORM pgworkers.notify('ready:' || q.name) FROM unnest(admit_limited_jobs.queues) AS q (name);
    END IF;
    IF chosen_ids IS NULL THEN
        RETURN;
    END IF;

    locked_limits := ARRAY(
        SELECT m.id FROM pgworkers.mutex m
         WHERE m.id = ANY (ARRAY(SELECT pgworkers.limit_mutex('task', c.task) FROM unnest(chosen_tasks) AS c (task)
                                 UNION SELECT pgworkers.limit_mutex('key', c.key) FROM unnest(chosen_keys) AS c (key)
                                        WHERE c.key IS NOT NULL))
         ORDER BY m.id FOR UPDATE SKIP LOCKED);

    IF EXISTS (SELECT FROM pgworkers.recent_limit n WHERE n.task = ANY (chosen_tasks)) THEN
        SELECT array_agg(n.task), array_agg(pgworkers.uncounted_running_jobs(n.task)) INTO new_limit_tasks, uncounted
          FROM pgworkers.recent_limit n WHERE n.task = ANY (chosen_tasks) AND pgworkers.limit_mutex('task', n.task) = ANY (locked_limits);
    END IF;

    dead_entries := -pgworkers.running_entries_read();
    WITH chosen AS MATERIALIZED (
        -- Tasks share the slots of a key, but each may allow it another number of them.
        SELECT c.task, c.key, c.id, c.nth, row_number() OVER (PARTITION BY c.task ORDER BY c.nth) AS nth_of_task,
               row_number() OVER (PARTITION BY c.key ORDER BY c.nth) AS nth_of_key,
               row_number() OVER (PARTITION BY c.key, c.task ORDER BY c.nth) = 1 AS is_counted
          FROM unnest(chosen_tasks, chosen_keys, chosen_ids) WITH ORDINALITY AS c (task, key, id, nth)
         WHERE pgworkers.limit_mutex('task', c.task) = ANY (locked_limits)
           AND (c.key IS NULL OR pgworkers.limit_mutex('key', c.key) = ANY (locked_limits))
    ),
    of_task AS MATERIALIZED (
        SELECT t.task, r.free - CASE WHEN n.task IS NULL THEN 0 ELSE coalesce(n.uncounted, r.free) END AS free, r.used,
               coalesce(r.since > now(), false) AS is_mark_newer
          FROM (SELECT DISTINCT c.task FROM chosen c) t
         CROSS JOIN LATERAL pgworkers.free_slots_of_task(t.task) r
          LEFT JOIN unnest(new_limit_tasks, uncounted) AS n (task, uncounted) ON n.task = t.task
    ),
    of_key AS MATERIALIZED (
        -- Each key is counted once, for the first of its jobs. A window gives the others the same number: a join by nested loops
        -- would compare each job with each key.
        SELECT c.id, c.nth, c.task, c.nth_of_task, c.nth_of_key, r.used, max(r.free) OVER of_one_key AS free,
               coalesce(max(r.since) OVER of_one_key > now(), false) AS is_mark_newer
          FROM chosen c
          LEFT JOIN LATERAL (SELECT r.* FROM pgworkers.free_slots_of_key(c.task, c.key) r WHERE c.is_counted OFFSET 0) r ON true
        WINDOW of_one_key AS (PARTITION BY c.key, c.task)
    )
    SELECT array_agg(k.id ORDER BY k.nth) FILTER (WHERE NOT t.is_mark_newer AND NOT k.is_mark_newer AND (t.free IS NULL OR k.nth_of_task <= t.free)
                                                    AND (k.free IS NULL OR k.nth_of_key <= k.free)),
           bool_or(t.is_mark_newer OR k.is_mark_newer),
           dead_entries - coalesce((SELECT sum(t.used + 20) FROM of_task t), 0) - coalesce(sum(k.used + 20), 0)
      INTO admitted_ids, is_mark_newer, dead_entries
      FROM of_key k JOIN of_task t ON t.task = k.task;
    IF dead_entries + pgworkers.running_entries_read() > 500 THEN
        PERFORM pgworkers.remember_limit_scans(
            ARRAY(SELECT t.name FROM unnest(chosen_tasks) AS t (name) WHERE pgworkers.limit_mutex('task', t.name) = ANY (locked_limits)),
            ARRAY(SELECT k.name FROM unnest(chosen_keys) AS k (name) WHERE pgworkers.limit_mutex('key', k.name) = ANY (locked_limits)));
    END IF;
    IF is_mark_newer THEN
        -- If the clock was set back, a mark lies in the future, and jobs claimed from now on would not be counted from it.
        DELETE FROM pgworkers.limit_scan_start m
         WHERE m.since > clock_timestamp() AND (m.kind = 'task' AND m.name = ANY (chosen_tasks) OR m.kind = 'key' AND m.name = ANY (chosen_keys));
    END IF;
    IF cardinality(admitted_ids) IS DISTINCT FROM cardinality(chosen_ids) AND array_position(uncounted, NULL) IS NULL THEN
        -- Other claims were faster or hold a limit, or two groups share one. The next claim finds these jobs, so it is notified. Jobs
        -- that wait for the end of older claims are left to the poll: those claims may take a while.
        PERFORM pgworkers.notify('ready:' || q.name) FROM unnest(admit_limited_jobs.queues) AS q (name);
    END IF;
    RETURN QUERY
    SELECT locked.at, locked.queue::text, locked.priority::integer, f.id, locked.run_at::timestamptz
      FROM unnest(admitted_ids) AS f (id)
     CROSS JOIN LATERAL (
           SELECT j.ctid AS at, j.queue, j.priority, j.run_at
             FROM pgworkers.job j
            WHERE j.id = f.id AND j.state = 'ready'
              FOR UPDATE SKIP LOCKED) locked;
END $$;

-- Choose what a claim takes where there are limits: the first `counts` jobs of each queue, from the jobs without limits that the claim
-- has found and locked (`unlimited`) and from those that admit_limited_jobs() returns. A job of a limited task that is still among the
-- unlimited ones is moved behind its limit instead, and a later claim takes it.
CREATE FUNCTION pgworkers.choose_claimed_jobs(unlimited tid[], queues text[], counts integer[], tasks text[], include_limited boolean, max_groups integer)
RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    moved_queue text;
    admitted tid[];
BEGIN
    FOR moved_queue IN
        UPDATE pgworkers.job j SET behind_limit = true
         WHERE j.ctid = ANY (choose_claimed_jobs.unlimited) AND j.state = 'ready'
           AND j.task = ANY (ARRAY(SELECT t.name FROM pgworkers.task t WHERE t.concurrency IS NOT NULL
                                   UNION ALL SELECT c.name FROM pgworkers.concurrency c WHERE c.kind = 'task'))
        RETURNING j.queue
    LOOP
        PERFORM pgworkers.notify('ready:' || moved_queue);
    END LOOP;
    IF choose_claimed_jobs.include_limited THEN
        SELECT array_agg(a.at) INTO admitted
          FROM (SELECT array_agg(w.queue) AS queues, array_agg(w.count) AS counts
                  FROM unnest(choose_claimed_jobs.queues, choose_claimed_jobs.counts) AS w (queue, count)
                 WHERE w.count > 0 AND NOT EXISTS (SELECT FROM pgworkers.queue q
                                                    WHERE q.name = w.queue AND (q.paused OR q.throttled_until > now()))) open
         CROSS JOIN LATERAL pgworkers.admit_limited_jobs(open.queues, open.counts, choose_claimed_jobs.tasks, false, choose_claimed_jobs.max_groups) a
         WHERE open.queues IS NOT NULL;
    END IF;
    IF cardinality(choose_claimed_jobs.unlimited) = 0 THEN
        RETURN coalesce(admitted, '{}');  -- admit_limited_jobs() returns at most `counts` of each queue
    END IF;
    RETURN ARRAY(
        SELECT c.at
          FROM (SELECT j.ctid AS at, j.queue, row_number() OVER (PARTITION BY j.queue ORDER BY j.priority DESC, j.id) AS nth
                  FROM pgworkers.job j
                 WHERE j.ctid = ANY (choose_claimed_jobs.unlimited || admitted) AND j.state = 'ready') c
          JOIN unnest(choose_claimed_jobs.queues, choose_claimed_jobs.counts) AS w (queue, count) ON w.queue = c.queue
         WHERE c.nth <= w.count);
END $$;

-- 4.4 Jobs that no claim can take ---------------------------------------------------------------------------------------------------
-- A claim takes many rows in one statement, so one row whose data makes the statement fail would stop all of them. The domains of Part
-- 1 refuse such data. These functions are for rows that exist nevertheless.

-- A lower bound for the digits that a JSON value prints, from its long numbers alone: at least a tenth of them. A number takes a few
-- bytes and can have 131,072 digits, so printing a value to learn its size may take longer than a statement may.
CREATE FUNCTION pgworkers.min_printed_digits(value jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT 90000 * jsonb_array_length(jsonb_path_query_array(value, 'strict $.** ? (@ >= 1e100000 || @ <= -1e100000)'))::bigint
     + 9000 * jsonb_array_length(jsonb_path_query_array(value, 'strict $.** ? (@ >= 1e10000 || @ <= -1e10000
                                                         || (@ != 0 && @ < 1e-10000 && @ > -1e-10000))'))
     + 900 * jsonb_array_length(jsonb_path_query_array(value, 'strict $.** ? (@ >= 1e1000 || @ <= -1e1000
                                                        || (@ != 0 && @ < 1e-1000 && @ > -1e-1000))'))
$$;

-- End the ready jobs whose data is too large to print: dead, verdict unfit. They are found without printing them, and without waiting
-- for a claim that still tries to. Their data is dropped: readers of history could not print it either. Reads up to `max_rows` rows of
-- each queue and kind, by the indexes job_ready and job_ready_limited.
CREATE FUNCTION pgworkers.end_oversized_jobs(queues text[], tasks text[], max_rows integer)
RETURNS TABLE (id bigint, lease integer, queue text, task text, attempt integer, max_attempts integer, reason text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    fault constant text := 'no worker can have it: its arguments, checkpoint or meta are larger than 4MB when they are printed';
    job   record;
BEGIN
    FOR job IN
        SELECT c.*
          FROM unnest(end_oversized_jobs.queues) AS w (queue)
         CROSS JOIN LATERAL (
               (SELECT j.* FROM pgworkers.job j
                 WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                   AND j.task = ANY (end_oversized_jobs.tasks)
                 ORDER BY j.priority DESC, j.id LIMIT end_oversized_jobs.max_rows)
                UNION ALL
               (SELECT j.* FROM pgworkers.job j
                 WHERE j.queue = w.queue AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
                   AND j.task = ANY (end_oversized_jobs.tasks)
                 ORDER BY j.task LIMIT end_oversized_jobs.max_rows)) c
         WHERE pgworkers.min_printed_digits(c.args) > 4194304 OR pgworkers.min_printed_digits(c.checkpoint) > 4194304
            OR pgworkers.min_printed_digits(c.meta) > 4194304
    LOOP
        UPDATE pgworkers.job j SET args = '{}', meta = NULL, checkpoint = NULL, progress = NULL
         WHERE j.id = job.id AND j.state = 'ready';
        CONTINUE WHEN NOT FOUND;
        PERFORM pgworkers.end_jobs(ARRAY[job.id], 'unfit', fault);
        RETURN QUERY SELECT job.id, job.lease, job.queue::text, job.task::text, job.attempt::integer,
                            job.max_attempts::integer, fault;
    END LOOP;
END $$;

-- Find the ready jobs that no claim can take, and end them: dead, verdict unfit, with the reason. The rows that a claim of these
-- queues would read are claimed for a trial, in a subtransaction that is rolled back. If that fails, they are halved until the bad row
-- is alone. Errors that say nothing about a row are raised again, and no job is ended: locks, resources, damage (class XX), a foreign
-- key (`job` has none of ours), the user's code in a trigger. Then, for each queue and task of a bad row, a new job without data is
-- claimed for a trial, too. If that fails, the data of the row is not the cause, and its job is not ended. Indexes job_ready and
-- job_ready_limited, up to `max_rows` rows of each queue and kind.
CREATE FUNCTION pgworkers.end_unclaimable_jobs(queues text[], tasks text[], max_rows integer)
RETURNS TABLE (id bigint, lease integer, queue text, task text, attempt integer, max_attempts integer, reason text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    ids     bigint[];
    slice_starts    integer[] := '{1}';  -- the slices of `ids` that are still to be tried
    slice_ends   integer[];
    first     integer;
    last    integer;
    middle  integer;
    printed bigint;
    context text;
    code    text;
    fault   text;
    bad     bigint[] := '{}';
    faults  text[] := '{}';
    one     record;
    probe   bigint;
    not_ended  bigint[] := '{}';
BEGIN
    SELECT array_agg(c.id), ARRAY[count(*)::integer] INTO ids, slice_ends
      FROM unnest(end_unclaimable_jobs.queues) AS w (queue)
     CROSS JOIN LATERAL (
           SELECT free.id
             FROM (SELECT j.id FROM pgworkers.job j
                    WHERE j.queue = w.queue AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                      AND j.task = ANY (end_unclaimable_jobs.tasks)
                    ORDER BY j.priority DESC, j.id LIMIT end_unclaimable_jobs.max_rows
                      FOR UPDATE SKIP LOCKED) free
            UNION ALL
           SELECT held.id
             FROM (SELECT j.id FROM pgworkers.job j
                    WHERE j.queue = w.queue AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
                      AND j.task = ANY (end_unclaimable_jobs.tasks)
                    ORDER BY j.task LIMIT end_unclaimable_jobs.max_rows
                      FOR UPDATE SKIP LOCKED) held) c;
    WHILE ids IS NOT NULL AND cardinality(slice_starts) > 0 LOOP
        first := slice_starts[cardinality(slice_starts)];
        last := slice_ends[cardinality(slice_ends)];
        slice_starts := slice_starts[:cardinality(slice_starts) - 1];
        slice_ends := slice_ends[:cardinality(slice_ends) - 1];
        BEGIN
            -- As claim.sql does, with all that it returns.
            WITH claimed AS (
                UPDATE pgworkers.job j
                   SET state = 'running', host = '00000000-0000-0000-0000-000000000000', lease = j.lease + 1,
                       attempt = j.attempt + 1, claimed_at = now()
                 WHERE j.id = ANY (ids[first:last]) AND j.state = 'ready'
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
                IF first < last THEN
                    middle := (first + last) / 2;
                    slice_starts := slice_starts || (middle + 1) || first;
                    slice_ends := slice_ends || last || middle;
                    CONTINUE;
                END IF;
                bad := bad || ids[first];
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
                not_ended := not_ended || one.ids;
        END;
    END LOOP;
    IF cardinality(bad) > 0 AND cardinality(not_ended) = cardinality(bad) THEN
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = fault,
            DETAIL = format('%s of %s jobs cannot be claimed, and neither can a job without any data. The cause is not their data. '
                            'None was ended.', cardinality(bad), cardinality(ids));
    END IF;
    FOR nth IN 1 .. cardinality(bad) LOOP
        CONTINUE WHEN bad[nth] = ANY (not_ended);
        fault := 'no worker can have it: ' || faults[nth];
        RETURN QUERY SELECT j.id, j.lease, j.queue::text, j.task::text, j.attempt::integer, j.max_attempts::integer, fault
                       FROM pgworkers.job j WHERE j.id = bad[nth];
        BEGIN
            PERFORM pgworkers.end_jobs(bad[nth:nth], 'unfit', fault);
        EXCEPTION WHEN OTHERS THEN
            -- History refuses the row, too: drop its data.
            UPDATE pgworkers.job j
               SET args = '{}', meta = NULL, checkpoint = NULL, progress = NULL, errors = '{}', concurrency_key = NULL,
                   run_at = now(), expires_at = NULL, deadline_at = NULL, timeout = NULL, memory = NULL
             WHERE j.id = bad[nth];
            PERFORM pgworkers.end_jobs(bad[nth:nth], 'unfit', fault);
        END;
    END LOOP;
END $$;

-- 4.5 End jobs ----------------------------------------------------------------------------------------------------------------------

-- Move waiting jobs from `job` to `history`. `ids` ascend, and the caller has locked these rows. `error_lines`: at the place of each
-- id, the line that is added to its errors; NULL: none. Running jobs are left alone. Returns the jobs that were moved; the caller
-- passes those with `has_links` to settle_dependents(). No other function inserts into history, except move_kept_rows(); the
-- statements of hosts include job/history_insert.fragment.sql.
CREATE FUNCTION pgworkers.archive_waiting_jobs(ids bigint[], verdict text, error_lines text[] DEFAULT NULL)
RETURNS TABLE (id bigint, batch_id bigint, has_links boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH ended AS (
        DELETE FROM pgworkers.job j
         WHERE j.id = ANY (archive_waiting_jobs.ids) AND j.state <> 'running'
        RETURNING j.*, archive_waiting_jobs.error_lines[width_bucket(j.id, archive_waiting_jobs.ids)] AS error_line
    ),
    archived AS (
        INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes, max_attempts,
                                       max_crashes, created_at, run_at, deadline_at, timeout, memory, unique_key,
                                       concurrency_key, checkpoint, progress, errors, meta, batch_id, has_links, enqueued_by)
        SELECT e.id, CASE archive_waiting_jobs.verdict WHEN 'cancelled' THEN 'cancelled' ELSE 'dead' END::pgworkers.job_state,
               archive_waiting_jobs.verdict, e.priority, e.queue, e.task, e.args, e.lease, e.attempt, e.crashes, e.max_attempts,
               e.max_crashes, e.created_at, e.run_at, e.deadline_at, e.timeout, e.memory, e.unique_key,
               e.concurrency_key, e.checkpoint, e.progress,
               CASE WHEN e.error_line IS NULL THEN e.errors
                    ELSE (e.errors || e.error_line)[greatest(cardinality(e.errors) - 8, 1):] END,
               e.meta, e.batch_id, e.has_links, e.enqueued_by
          FROM ended e
    )
    SELECT e.id, e.batch_id, e.has_links FROM ended e;
END $$;

-- Let waiting jobs become ready that wait for nothing any more. The caller holds the locks of their rows.
CREATE FUNCTION pgworkers.promote_waiting(ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    promoted record;
BEGIN
    FOR promoted IN
        WITH moved AS (
            UPDATE pgworkers.job j
               SET state = 'ready', run_at = now()
             WHERE j.id = ANY (promote_waiting.ids) AND j.state = 'scheduled' AND j.run_at = pgworkers.far_future()
               AND NOT EXISTS (SELECT FROM pgworkers.dependency d WHERE d.job_id = j.id)
            RETURNING j.queue, j.task
        )
        SELECT m.queue, array_agg(m.task::text) AS tasks, count(*) AS jobs FROM moved m GROUP BY m.queue
    LOOP
        PERFORM pgworkers.notify_ready(promoted.queue, promoted.tasks, promoted.jobs);
    END LOOP;
END $$;

-- Settle what depends on jobs that have ended. Jobs that `succeeded_ids` does not name have failed. Jobs that wait for them become
-- ready, or are cancelled, and a batch without a live job is completed. Each statement that moves rows to history calls it with the
-- jobs whose `has_links` is set. `were_running`: the jobs were running, not waiting. Goes on level by level, up to `max_links` links
-- in all. If a level has more links than are left, nothing of that level is settled: its parents go to `ended_parent`, and the leader
-- goes on: reopen_links(), link_dependencies(). It waits for no lock of a job, because the session of an enqueuer may hold one that
-- waits (on_conflict 'replace'). The links of such a job are left to link_dependencies(), too.
CREATE FUNCTION pgworkers.settle_dependents(ids bigint[], batch_ids bigint[], were_running boolean, succeeded_ids bigint[] DEFAULT NULL,
                                max_links integer DEFAULT 1000) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failed bigint[] := ARRAY(SELECT f.id FROM unnest(settle_dependents.ids) AS f (id) WHERE f.id <> ALL (coalesce(settle_dependents.succeeded_ids, '{}')));
    parents bigint[] := settle_dependents.ids;
    children bigint[];
    locked bigint[];
    cancelled bigint[];
    error_lines text[];
    doomed bigint[];
    one record;
    newest pgworkers.job_state;
BEGIN
    WHILE cardinality(parents) > 0 LOOP
        children := ARRAY(SELECT d.job_id FROM pgworkers.dependency d WHERE d.parent_id = ANY (parents) LIMIT max_links + 1);
        EXIT WHEN cardinality(children) = 0;
        IF cardinality(children) > max_links THEN
            INSERT INTO pgworkers.ended_parent AS e (id)
            SELECT p.id FROM unnest(parents) AS p (id)
             WHERE EXISTS (SELECT FROM pgworkers.dependency d WHERE d.parent_id = p.id)
             ORDER BY p.id
            ON CONFLICT (id) DO UPDATE SET settled_up_to = excluded.settled_up_to;
            PERFORM pgworkers.notify('due:');
            EXIT;
        END IF;
        max_links := max_links - cardinality(children);
        locked := ARRAY(SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (children) ORDER BY j.id FOR UPDATE SKIP LOCKED);
        UPDATE pgworkers.dependency d SET linked = false WHERE d.parent_id = ANY (parents) AND d.job_id <> ALL (locked);
        IF FOUND THEN
            PERFORM pgworkers.notify('due:');
        END IF;
        doomed := '{}';
        SELECT array_agg(c.id ORDER BY c.id), array_agg(c.error_line ORDER BY c.id) INTO cancelled, error_lines
          FROM (SELECT j.id, 'cancelled: job #' || (SELECT min(d.parent_id) FROM pgworkers.dependency d
                                                     WHERE d.job_id = j.id AND d.parent_id = ANY (failed))
                             || ', which it waited for, did not succeed' AS error_line
                  FROM pgworkers.job j
                 WHERE j.id = ANY (locked) AND j.state = 'scheduled' AND j.run_at = pgworkers.far_future()
                   AND EXISTS (SELECT FROM pgworkers.dependency d
                                WHERE d.job_id = j.id AND d.parent_id = ANY (parents) AND d.parent_id = ANY (failed)
                                  AND d.on_failed = 'cancel')) c;
        FOR one IN SELECT a.id, a.batch_id FROM pgworkers.archive_waiting_jobs(cancelled, 'cancelled', error_lines) a
        LOOP
            settle_dependents.ids := settle_dependents.ids || one.id;
            settle_dependents.batch_ids := settle_dependents.batch_ids || one.batch_id;
            doomed := doomed || one.id;
            settle_dependents.were_running := false;
            PERFORM pgworkers.notify(one.id::text, 'pgworkers_done');
        END LOOP;
        DELETE FROM pgworkers.dependency d
         WHERE d.parent_id = ANY (parents) AND d.job_id = ANY (locked)
           AND (d.on_failed <> 'wait' OR d.parent_id <> ALL (failed));
        PERFORM pgworkers.promote_waiting(locked);
        failed := failed || doomed;
        parents := doomed;
    END LOOP;
    -- Delete the links to what the ended jobs themselves waited for. Links that another session holds are skipped, so that two ends
    -- never wait for each other: that session sets the link back to `linked = false`, and link_dependencies() deletes it.
    DELETE FROM pgworkers.dependency d
     USING (SELECT l.parent_id, l.job_id FROM pgworkers.dependency l WHERE l.job_id = ANY (settle_dependents.ids) FOR UPDATE SKIP LOCKED) f
     WHERE d.parent_id = f.parent_id AND d.job_id = f.job_id;

    FOR one IN
        SELECT b.id, bool_or(b.job_id = ANY (failed)) AS failed
          FROM unnest(settle_dependents.ids, settle_dependents.batch_ids) AS b (job_id, id)
         WHERE b.id IS NOT NULL
         GROUP BY b.id
         ORDER BY b.id
    LOOP
        -- A session with the exclusive lock, see settle_batch(), either sees that our rows are deleted, or we have not yet got here.
        -- docs/adr/26
        PERFORM FROM pgworkers.mutex m WHERE m.id = pgworkers.batch_mutex(one.id) FOR KEY SHARE;
        newest := pgworkers.newest_live_state(one.id);
        IF newest IS NULL THEN
            PERFORM pgworkers.complete_batch(one.id, one.failed);
        ELSIF newest = 'running' OR NOT settle_dependents.were_running THEN
            PERFORM pgworkers.notify('batch:' || one.id);  -- other sessions may be ending the rest: settle it after commit
        END IF;
    END LOOP;
END $$;

-- End waiting jobs by `verdict`: 'cancelled', or one that means dead. Not for operators, who call cancel_many() and discard_many().
-- Without `error_line` it also applies to running jobs: a cancel is requested, their hosts are notified, and they end when their
-- processes are dead. With `error_line`, a line that is added to their errors, it applies only to waiting jobs (discard, purge).
-- Returns for each id 'cancelled' or 'dead', 'cancelling', the state that it keeps, or NULL: no such job. Locks in id order.
-- `should_record`: a login asked for it, and a row in `operation` records the login, its `reason` and its `os_user`. `max_links`: see
-- settle_dependents().
CREATE FUNCTION pgworkers.end_jobs(ids bigint[], verdict text, error_line text DEFAULT NULL, reason text DEFAULT NULL,
                                   os_user text DEFAULT NULL, should_record boolean DEFAULT false, max_links integer DEFAULT 1000)
RETURNS TABLE (id bigint, answer text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    wanted bigint[] := ARRAY(SELECT DISTINCT w.id FROM unnest(end_jobs.ids) AS w (id) ORDER BY w.id);
    outcome pgworkers.job_state := CASE end_jobs.verdict WHEN 'cancelled' THEN 'cancelled' ELSE 'dead' END;
    locked bigint[];
    ended_ids bigint[];
    linked_ids bigint[];
    batch_ids bigint[];
    requeued bigint[] := '{}';
    verb text := CASE WHEN end_jobs.verdict <> 'cancelled' THEN 'discard' WHEN end_jobs.error_line IS NULL THEN 'cancel' ELSE 'purge' END;
    one record;
BEGIN
    WHILE cardinality(wanted) > 0 LOOP
        locked := ARRAY(SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (wanted) ORDER BY j.id FOR UPDATE);
        SELECT coalesce(array_agg(e.id), '{}'), array_agg(e.id) FILTER (WHERE e.has_links),
               array_agg(e.batch_id) FILTER (WHERE e.has_links)
          INTO ended_ids, linked_ids, batch_ids
          FROM pgworkers.archive_waiting_jobs(locked, end_jobs.verdict,
                   CASE WHEN end_jobs.error_line IS NOT NULL THEN array_fill(end_jobs.error_line, ARRAY[cardinality(locked)]) END) e;
        IF end_jobs.should_record THEN
            INSERT INTO pgworkers.operation (verb, job_id, reason, os_user)
            SELECT verb, t.id, end_jobs.reason, end_jobs.os_user
              FROM unnest(CASE verb WHEN 'cancel' THEN locked ELSE ended_ids END) AS t (id);
        END IF;
        IF linked_ids IS NOT NULL THEN
            PERFORM pgworkers.settle_dependents(linked_ids, batch_ids, false, max_links => end_jobs.max_links);
        END IF;
        IF cardinality(ended_ids) > 0 THEN
            PERFORM pgworkers.notify(CASE WHEN octet_length(told.ids) > 7000 THEN '*' ELSE told.ids END, 'pgworkers_done')
               FROM array_to_string(ended_ids, ' ') AS told (ids);
            RETURN QUERY SELECT g.id, outcome::text FROM unnest(ended_ids) AS g (id);
        END IF;
        IF cardinality(locked) > cardinality(ended_ids) AND end_jobs.error_line IS NULL THEN
            RETURN QUERY
            WITH flagged AS (
                UPDATE pgworkers.job j SET cancel_at = coalesce(j.cancel_at, now())
                 WHERE j.id = ANY (locked) AND j.id <> ALL (ended_ids)
                RETURNING j.id, pgworkers.notify('cancel:' || j.id)
            )
            SELECT f.id, 'cancelling' FROM flagged f;
        ELSIF cardinality(locked) > cardinality(ended_ids) THEN
            RETURN QUERY SELECT r.id, 'running' FROM unnest(locked) AS r (id) WHERE r.id <> ALL (ended_ids);
        END IF;
        IF cardinality(wanted) = cardinality(locked) THEN
            RETURN;
        END IF;
        -- The other ids have ended, or never existed. One that is in `job` now was requeued after the rows were locked.
        FOR one IN
            SELECT w.id, EXISTS (SELECT FROM pgworkers.job j WHERE j.id = w.id) AS lives,
                   (SELECT h.state::text FROM pgworkers.history h WHERE h.id = w.id ORDER BY h.finished_at DESC LIMIT 1) AS state
              FROM unnest(wanted) AS w (id)
             WHERE w.id <> ALL (locked)
        LOOP
            IF one.lives THEN
                requeued := requeued || one.id;
            ELSE
                RETURN QUERY SELECT one.id, one.state;
            END IF;
        END LOOP;
        wanted := requeued;
        requeued := '{}';
    END LOOP;
END $$;

-- 4.6 Dependencies and batches ------------------------------------------------------------------------------------------------------

-- Of parents with more followers than one statement may settle, set at most `max_links` links back to `linked = false`, in the order
-- of the followers, so that link_dependencies() settles them. Each link is changed once. A parent without another link is done.
-- Returns how many links were changed.
CREATE FUNCTION pgworkers.reopen_links(max_links integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parent pgworkers.ended_parent;
    followers bigint[];
    reopened integer := 0;
BEGIN
    FOR parent IN SELECT e.* FROM pgworkers.ended_parent e ORDER BY e.id LIMIT reopen_links.max_links FOR UPDATE SKIP LOCKED LOOP
        EXIT WHEN reopened >= reopen_links.max_links;
        followers := '{}';
        IF NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.id = parent.id) THEN  -- else an operator requeued it, and they wait for it again
            followers := ARRAY(SELECT d.job_id FROM pgworkers.dependency d
                                WHERE d.parent_id = parent.id AND d.job_id > parent.settled_up_to
                                ORDER BY d.job_id LIMIT reopen_links.max_links - reopened);
        END IF;
        IF cardinality(followers) = 0 THEN
            DELETE FROM pgworkers.ended_parent e WHERE e.id = parent.id;
            CONTINUE;
        END IF;
        UPDATE pgworkers.dependency d SET linked = false WHERE d.parent_id = parent.id AND d.job_id = ANY (followers);
        UPDATE pgworkers.ended_parent e SET settled_up_to = followers[cardinality(followers)] WHERE e.id = parent.id;
        reopened := reopened + cardinality(followers);
    END LOOP;
    RETURN reopened;
END $$;

-- The duty `link_dependencies` of the leader: link new followers to their parents, at most `max_links` links. A live parent is marked,
-- so that its end settles the follower. The end of a parent that has ended in the meantime takes effect now. Rows that others hold are
-- left for the next time. The scan begins at a random place, so that links that are held cannot keep others waiting. Returns how many
-- links were settled.
CREATE FUNCTION pgworkers.link_dependencies(max_links integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    children bigint[];
    parents bigint[];
    locked bigint[];
    start bigint;
    link record;
    settled integer := 0;
BEGIN
    PERFORM pgworkers.reopen_links(link_dependencies.max_links);
    SELECT l.lowest + floor(random()::numeric * (l.highest - l.lowest + 1)) INTO start
      FROM (SELECT min(d.job_id)::numeric AS lowest, max(d.job_id)::numeric AS highest FROM pgworkers.dependency d WHERE NOT d.linked) l;
    SELECT array_agg(n.job_id), array_agg(n.parent_id) INTO children, parents
      FROM ((SELECT d.job_id, d.parent_id FROM pgworkers.dependency d
              WHERE NOT d.linked AND d.job_id >= start ORDER BY d.job_id LIMIT link_dependencies.max_links)
            UNION ALL
            (SELECT d.job_id, d.parent_id FROM pgworkers.dependency d
              WHERE NOT d.linked AND d.job_id < start ORDER BY d.job_id LIMIT link_dependencies.max_links)
            LIMIT link_dependencies.max_links) n;
    IF children IS NULL THEN
        RETURN 0;
    END IF;
    locked := ARRAY(SELECT j.id FROM pgworkers.job j WHERE j.id = ANY (children || parents) ORDER BY j.id FOR UPDATE SKIP LOCKED);
    FOR link IN
        SELECT d.parent_id, d.job_id, d.on_failed, p.id IS NOT NULL AS lives,
               (SELECT h.state FROM pgworkers.history h WHERE h.id = d.parent_id ORDER BY h.finished_at DESC LIMIT 1) AS state,
               NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.id = d.job_id) AS childless
          FROM unnest(children, parents) AS n (job_id, parent_id)
          JOIN pgworkers.dependency d ON d.job_id = n.job_id AND d.parent_id = n.parent_id
          LEFT JOIN pgworkers.job p ON p.id = d.parent_id
         WHERE NOT d.linked
         ORDER BY d.job_id, d.parent_id
    LOOP
        IF link.childless THEN
            DELETE FROM pgworkers.dependency d WHERE d.parent_id = link.parent_id AND d.job_id = link.job_id;
        ELSIF link.job_id <> ALL (locked) OR (link.lives AND link.parent_id <> ALL (locked)) THEN
            CONTINUE;
        ELSIF link.lives THEN
            UPDATE pgworkers.job j SET has_links = true WHERE j.id = link.parent_id AND NOT j.has_links;
            UPDATE pgworkers.dependency d SET linked = true WHERE d.parent_id = link.parent_id AND d.job_id = link.job_id;
        ELSIF link.state = 'succeeded' OR link.on_failed = 'run' THEN
            DELETE FROM pgworkers.dependency d WHERE d.parent_id = link.parent_id AND d.job_id = link.job_id;
            PERFORM pgworkers.promote_waiting(ARRAY[link.job_id]);
        ELSIF link.on_failed = 'wait' AND link.state IS NOT NULL THEN
            PERFORM FROM pgworkers.history h WHERE h.id = link.parent_id FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;  -- an operator is requeuing it
            UPDATE pgworkers.history h SET has_links = true WHERE h.id = link.parent_id AND NOT h.has_links;
            UPDATE pgworkers.dependency d SET linked = true WHERE d.parent_id = link.parent_id AND d.job_id = link.job_id;
        ELSE
            DELETE FROM pgworkers.dependency d WHERE d.parent_id = link.parent_id AND d.job_id = link.job_id;
            UPDATE pgworkers.job j
               SET errors = j.errors || ('cancelled: job #' || link.parent_id || ', which it waited for, '
                                         || CASE WHEN link.state IS NULL THEN 'is unknown' ELSE 'did not succeed' END)
             WHERE j.id = link.job_id AND j.state = 'scheduled' AND j.run_at = pgworkers.far_future();
            IF FOUND THEN
                PERFORM pgworkers.end_jobs(ARRAY[link.job_id], 'cancelled',  -- more followers: the next time
                                           max_links => greatest(3, link_dependencies.max_links / cardinality(children)));
            END IF;
        END IF;
        settled := settled + 1;
    END LOOP;
    RETURN settled;
END $$;

-- The state of the newest live job of a batch. NULL: the batch has no live job.
CREATE FUNCTION pgworkers.newest_live_state(batch_id bigint) RETURNS pgworkers.job_state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT j.state FROM pgworkers.job j WHERE j.batch_id = newest_live_state.batch_id ORDER BY j.id DESC LIMIT 1);
END $$;

-- The row of `mutex` that stands for a batch. Several batches may share a row; then a settle only has to be repeated.
CREATE FUNCTION pgworkers.batch_mutex(batch_id bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT 1024 + (hashint8(batch_id) & 1023)
$$;

-- Complete a batch without live jobs: the job that comes after it begins, once. `failed`: a job that ends in this very statement has failed;
-- other failures are found in history. Returns whether the batch was completed. It waits for no lock, because it runs in statements that end
-- jobs of other batches, too: a batch whose row is locked is completed by the leader after a notification, or by the duty `batches`.
CREATE FUNCTION pgworkers.complete_batch(batch_id bigint, has_failed boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_batch pgworkers.batch;
BEGIN
    SELECT * INTO found_batch FROM pgworkers.batch b WHERE b.id = complete_batch.batch_id AND b.finished_at IS NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF EXISTS (SELECT FROM pgworkers.batch b WHERE b.id = complete_batch.batch_id AND b.finished_at IS NULL) THEN
            PERFORM pgworkers.notify('batch:' || complete_batch.batch_id);
        END IF;
        RETURN false;
    END IF;
    PERFORM FROM pgworkers.job j WHERE j.id = found_batch.then_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT FROM pgworkers.job j WHERE j.id = found_batch.then_id) THEN
        RETURN false;  -- an enqueuer has locked it; the duty that settles open batches tries again
    END IF;
    IF found_batch.then_id IS NOT NULL AND found_batch.on_failed <> 'run' AND NOT complete_batch.has_failed THEN
        complete_batch.has_failed := EXISTS (SELECT FROM pgworkers.history h
                                    WHERE h.batch_id = complete_batch.batch_id AND h.state <> 'succeeded');
    END IF;
    IF found_batch.then_id IS NOT NULL AND complete_batch.has_failed AND found_batch.on_failed = 'wait' THEN
        RETURN false;  -- an operator may requeue what failed
    END IF;
    UPDATE pgworkers.batch b SET finished_at = now() WHERE b.id = complete_batch.batch_id;
    IF found_batch.then_id IS NOT NULL AND complete_batch.has_failed AND found_batch.on_failed = 'cancel' THEN
        UPDATE pgworkers.job j
           SET errors = j.errors || ('cancelled: batch #' || complete_batch.batch_id || ' has jobs that did not succeed')
         WHERE j.id = found_batch.then_id AND j.state = 'scheduled' AND j.run_at = pgworkers.far_future();
        IF FOUND THEN
            PERFORM pgworkers.end_jobs(ARRAY[found_batch.then_id], 'cancelled');
        END IF;
    ELSIF found_batch.then_id IS NOT NULL THEN
        PERFORM pgworkers.promote_waiting(ARRAY[found_batch.then_id]);
    END IF;
    PERFORM pgworkers.notify('batch:' || complete_batch.batch_id, 'pgworkers_done');
    RETURN true;
END $$;

-- Complete a batch if no job of it lives, after a notification 'batch:<id>': the transactions that ended its jobs have committed by
-- now. Returns 'live', 'finished', 'waiting' (for a requeue), or 'busy': some transactions have not committed, call it again soon.
-- Runs in a transaction of its own, which holds nothing that those transactions might wait for.
CREATE FUNCTION pgworkers.settle_batch(batch_id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgworkers.newest_live_state(settle_batch.batch_id) <> 'running' THEN
        RETURN 'live';
    END IF;
    PERFORM FROM pgworkers.mutex m WHERE m.id = pgworkers.batch_mutex(settle_batch.batch_id) FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 'busy';
    END IF;
    IF pgworkers.newest_live_state(settle_batch.batch_id) IS NOT NULL THEN
        RETURN 'live';
    END IF;
    PERFORM FROM pgworkers.batch b WHERE b.id = settle_batch.batch_id AND b.finished_at IS NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM pgworkers.batch b WHERE b.id = settle_batch.batch_id AND b.finished_at IS NULL)
                    THEN 'busy' ELSE 'finished' END;
    END IF;
    RETURN CASE WHEN pgworkers.complete_batch(settle_batch.batch_id, false) THEN 'finished' ELSE 'waiting' END;
END $$;

-- 4.7 Operators ---------------------------------------------------------------------------------------------------------------------

-- Cancel or purge jobs, each with a row in `operation`. Runs with the rights of the owner (roles.sql), so it sets the verdict and the
-- error line itself. `waiting_only`: running jobs are left alone (purge). Returns what end_jobs() returns.
CREATE FUNCTION pgworkers.cancel_many(ids bigint[], waiting_only boolean DEFAULT false, reason text DEFAULT NULL,
                                      os_user text DEFAULT NULL)
RETURNS TABLE (id bigint, answer text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT e.id, e.answer
      FROM pgworkers.end_jobs(cancel_many.ids, 'cancelled', CASE WHEN cancel_many.waiting_only THEN 'purged by an operator' END,
                              cancel_many.reason, cancel_many.os_user, should_record => true) e;
END $$;

-- Discard jobs that do not run, in the same way.
CREATE FUNCTION pgworkers.discard_many(ids bigint[], reason text DEFAULT NULL, os_user text DEFAULT NULL)
RETURNS TABLE (id bigint, answer text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT e.id, e.answer
      FROM pgworkers.end_jobs(discard_many.ids, 'discarded', 'discarded by an operator', discard_many.reason, discard_many.os_user,
                              should_record => true) e;
END $$;

-- Cancel a job. A ready or scheduled one is cancelled at once. For a running one its host is notified, and it becomes cancelled when
-- its process is dead. Returns 'cancelled', 'cancelling', the terminal state, or NULL: no such job.
CREATE FUNCTION pgworkers.cancel(job_id bigint, reason text DEFAULT NULL, os_user text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT c.answer FROM pgworkers.cancel_many(ARRAY[cancel.job_id], false, cancel.reason, cancel.os_user) c);
END $$;

-- Give up a job that does not run: dead, verdict discarded. Returns the state that it then has ('running': nothing was done), or NULL:
-- no such job.
CREATE FUNCTION pgworkers.discard(job_id bigint, reason text DEFAULT NULL, os_user text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT d.answer FROM pgworkers.discard_many(ARRAY[discard.job_id], discard.reason, discard.os_user) d);
END $$;

-- Set the deadline of a job, over all attempts, to this long from now. 0 means that it must end now. The host of a running job is
-- notified, and the new deadline then replaces the timeout of the attempt. Returns the state of the job ('succeeded', 'dead',
-- 'cancelled': nothing was done), or NULL: no such job. A change inserts a row into `operation`.
CREATE FUNCTION pgworkers.set_deadline(job_id bigint, within interval, os_user text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_state text;
BEGIN
    IF within IS NULL OR within < interval '0' OR within > interval '36525 days' THEN
        RAISE EXCEPTION 'a deadline must be from 0 to 100 years from now, not %', within
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE pgworkers.job j SET deadline_at = now() + within WHERE j.id = set_deadline.job_id RETURNING j.state INTO found_state;
    IF found_state IS NOT NULL THEN
        INSERT INTO pgworkers.operation (verb, job_id, reason, os_user)
        VALUES ('deadline', set_deadline.job_id, 'within ' || within, set_deadline.os_user);
    END IF;
    IF found_state = 'running' THEN
        PERFORM pgworkers.notify('deadline:' || set_deadline.job_id);
    ELSIF found_state IS NULL THEN
        SELECT h.state INTO found_state FROM pgworkers.history h
         WHERE h.id = set_deadline.job_id ORDER BY h.finished_at DESC LIMIT 1;
    END IF;
    RETURN found_state;
END $$;

-- Run these jobs (again): dead and cancelled ones come back from history with fresh budgets, scheduled ones become ready at once. The
-- lease is kept, so that the fence goes on growing. If a newer job holds the unique key of a row, only that row stays behind. A row
-- that another session changed while this statement waited for it is 'changing': the state that this statement sees is an old one.
-- Index: the primary keys. Guard: the state, under the row lock.
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
    requeued AS (
        INSERT INTO pgworkers.job (id, state, priority, queue, task, args, lease, max_attempts, max_crashes, created_at,
                                   deadline_at, timeout, memory, unique_key, concurrency_key, checkpoint, errors, meta,
                                   batch_id, has_links, enqueued_by)
        SELECT id, 'ready', priority, queue, task, args, lease, max_attempts, max_crashes, created_at,
               now() + (deadline_at - created_at), timeout, memory, unique_key, concurrency_key, checkpoint, errors, meta, batch_id,
               has_links, enqueued_by
          FROM picked
         ORDER BY id
        ON CONFLICT DO NOTHING
        RETURNING id, queue
    ),
    deleted AS (
        DELETE FROM pgworkers.history h
         USING picked p
         WHERE h.id = p.id AND h.finished_at = p.finished_at AND h.id IN (SELECT id FROM requeued)
    ),
    scheduled AS MATERIALIZED (
        SELECT j.id
          FROM pgworkers.job j
         WHERE j.id = ANY (requeue.ids) AND j.state::text = 'scheduled'
         ORDER BY j.id
           FOR UPDATE
    ),
    promoted AS (
        UPDATE pgworkers.job j
           SET state = 'ready', run_at = now()
         WHERE j.id = ANY (ARRAY(SELECT id FROM scheduled)) AND j.state::text = 'scheduled'
        RETURNING j.id, j.queue
    ),
    recorded AS (
        INSERT INTO pgworkers.operation (verb, job_id, reason, os_user, state, finished_at)
        SELECT 'retry', b.id, requeue.reason, requeue.os_user, p.state, p.finished_at FROM requeued b JOIN picked p ON p.id = b.id
        UNION ALL
        SELECT 'retry', w.id, requeue.reason, requeue.os_user, 'scheduled', NULL FROM promoted w
        RETURNING job_id
    ),
    notified AS MATERIALIZED (
        SELECT pgworkers.notify('ready:' || queue) FROM (SELECT queue FROM requeued UNION SELECT queue FROM promoted) q
    )
    SELECT w.id,
           CASE WHEN w.id IN (SELECT id FROM requeued UNION ALL SELECT id FROM promoted) THEN 'requeued'
                WHEN w.id IN (SELECT id FROM picked) THEN 'conflict'
                WHEN seen.state IN ('scheduled', 'dead', 'cancelled') THEN 'changing'
                ELSE coalesce(seen.state, 'missing') END
      FROM wanted w
     CROSS JOIN LATERAL (
           SELECT coalesce((SELECT j.state::text FROM pgworkers.job j WHERE j.id = w.id),
                           (SELECT h.state::text FROM pgworkers.history h WHERE h.id = w.id LIMIT 1)) AS state) seen
     WHERE (SELECT count(*) FROM notified) >= 0 AND (SELECT count(*) FROM recorded) >= 0
     ORDER BY w.id;
END $$;

-- Delete dead jobs for good, with their attempts. Index: the primary keys. Guard: still dead under the row lock, so a job that an
-- operator has requeued in the meantime is never deleted. Rows are locked in id order. A job that another one waits for is kept: its
-- follower needs it for the reason, and perhaps for a retry. Retention moves a row once, by a DELETE and an INSERT, see
-- move_kept_rows(): a session that waited for that finds nothing in the first round, and the new row in the second.
CREATE FUNCTION pgworkers.purge_dead(ids bigint[], reason text DEFAULT NULL, os_user text DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted    bigint[] := purge_dead.ids;
    deleted_ids     bigint[];
    purged bigint[] := '{}';
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
        deleted AS (
            DELETE FROM pgworkers.history h
             USING dead d
             WHERE h.id = d.id AND h.finished_at = d.finished_at AND h.state = 'dead'
            RETURNING h.id, h.finished_at
        ),
        recorded AS (
            INSERT INTO pgworkers.operation (verb, job_id, reason, os_user, state, finished_at)
            SELECT 'forget', g.id, purge_dead.reason, purge_dead.os_user, 'dead', g.finished_at FROM deleted g
        )
        SELECT coalesce(array_agg(g.id), '{}') INTO deleted_ids FROM deleted g;
        purged := purged || deleted_ids;
        wanted := ARRAY(SELECT w.id FROM unnest(wanted) AS w (id) WHERE w.id <> ALL (deleted_ids));
    END LOOP;
    IF cardinality(purged) > 0 THEN
        FOR round IN 1 .. 2 LOOP
            DELETE FROM pgworkers.attempt a WHERE a.job_id = ANY (purged);
        END LOOP;
    END IF;
    RETURN QUERY SELECT f.id FROM unnest(purged) AS f (id) ORDER BY f.id;
END $$;

-- Record each change of a retention, whatever statement makes it: a shorter one deletes history.
CREATE FUNCTION pgworkers.record_retention_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pgworkers.operation (verb, queue, reason)
    VALUES ('retention', NEW.name,
            format('from %s to %s', coalesce(OLD.retention::text, 'the default'), coalesce(NEW.retention::text, 'the default')));
    RETURN NULL;
END $$;
CREATE TRIGGER queue_retention_changed AFTER UPDATE OF retention ON pgworkers.queue
FOR EACH ROW WHEN (OLD.retention IS DISTINCT FROM NEW.retention) EXECUTE FUNCTION pgworkers.record_retention_change();

-- 4.8 Hosts and queues --------------------------------------------------------------------------------------------------------------

-- Ranges of host ids that contain no live host. A search for the jobs of lost hosts reads only these ranges of job_running, which has
-- as many entries of a live host as it has run jobs since the last vacuum. `asking_host` is alive, whatever its row says.
-- `host_clock`: the time of the database as the asking host estimates it, if that is earlier than the database's own: setting that
-- clock forward makes no host lost (master/lease_keeper). Inlined, no search_path.
CREATE FUNCTION pgworkers.lost_host_ranges(asking_host uuid, host_clock timestamptz) RETURNS TABLE (after_id uuid, before_id uuid)
LANGUAGE sql STABLE AS $$
SELECT l.id, pg_catalog.lead(l.id) OVER (ORDER BY l.id)
  FROM (SELECT h.id FROM pgworkers.host h
         WHERE h.renewed_at OPERATOR(pg_catalog.>=) (least(pg_catalog.now(), host_clock) OPERATOR(pg_catalog.-) h.lease)
        UNION
        SELECT asking_host
        UNION
        SELECT pg_catalog.unnest('{00000000-0000-0000-0000-000000000000,ffffffff-ffff-ffff-ffff-ffffffffffff}'::pg_catalog.uuid[])) l
$$;

-- How many workers hosts have reported, by queue, for counts that must not wait for the table `host`: while another session keeps it
-- locked, it returns one row of NULLs, after 50 ms.
CREATE FUNCTION pgworkers.worker_counts() RETURNS TABLE (host uuid, queue text, workers bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
BEGIN
    RETURN QUERY SELECT w.host, w.queue, count(*) FROM pgworkers.worker w GROUP BY w.host, w.queue;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::bigint;
END $$;

-- Grant workers of a queue to hosts: `wanted`, as far as `total` allows. A host that must give up workers is notified at once. What it has counts
-- until it has acknowledged that they are gone, or until its lease is over. So the sum of what may run never exceeds the total, in whatever order
-- hosts ask. `host_clock`: see lost_host_ranges(). Returns how many grants changed. NULL: another session holds the row of the queue or of a
-- grant for longer than 30 ms, and nothing was changed; the leader, whose duties share one session, must not wait for it.
CREATE FUNCTION pgworkers.grant_cluster_slots(queue text, total integer, hosts uuid[], wanted integer[], host_clock timestamptz)
RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' AS $$
#variable_conflict use_column
DECLARE
    free    integer;
    one     record;
    more    integer;
    changed integer;
BEGIN
    PERFORM FROM pgworkers.queue q WHERE q.name = grant_cluster_slots.queue FOR UPDATE;
    PERFORM FROM pgworkers.cluster_slots s WHERE s.queue = grant_cluster_slots.queue ORDER BY s.host FOR UPDATE;
    DELETE FROM pgworkers.cluster_slots s USING pgworkers.host h
     WHERE s.queue = grant_cluster_slots.queue AND h.id = s.host AND s.acknowledged_at < least(now(), host_clock) - h.lease;
    UPDATE pgworkers.cluster_slots s SET granted = w.workers
      FROM unnest(grant_cluster_slots.hosts, grant_cluster_slots.wanted) AS w (host, workers)
     WHERE s.queue = grant_cluster_slots.queue AND s.host = w.host AND w.workers < s.granted;
    GET DIAGNOSTICS changed = ROW_COUNT;
    SELECT grant_cluster_slots.total - coalesce(sum(greatest(s.granted, s.acknowledged)), 0) INTO free
      FROM pgworkers.cluster_slots s WHERE s.queue = grant_cluster_slots.queue;
    FOR one IN
        SELECT w.host, w.workers AS wanted, coalesce(s.granted, 0) AS granted, coalesce(s.acknowledged, 0) AS acknowledged
          FROM unnest(grant_cluster_slots.hosts, grant_cluster_slots.wanted) WITH ORDINALITY AS w (host, workers, nth)
          JOIN pgworkers.host h ON h.id = w.host
          LEFT JOIN pgworkers.cluster_slots s ON s.queue = grant_cluster_slots.queue AND s.host = w.host
         WHERE s.host IS NULL OR w.workers > s.granted
         ORDER BY w.nth
    LOOP
        -- It may keep the workers that it has not yet given up; more come from those that are free.
        more := least(one.wanted, greatest(one.granted, one.acknowledged) + greatest(free, 0));
        free := free - greatest(more - greatest(one.granted, one.acknowledged), 0);
        INSERT INTO pgworkers.cluster_slots AS s (queue, host, granted, acknowledged)
        VALUES (grant_cluster_slots.queue, one.host, more, one.acknowledged)
        ON CONFLICT (queue, host) DO UPDATE SET granted = excluded.granted WHERE s.granted <> excluded.granted;
        IF FOUND THEN
            changed := changed + 1;
        END IF;
    END LOOP;
    IF changed > 0 THEN
        PERFORM pgworkers.notify('queue:' || grant_cluster_slots.queue);
    END IF;
    RETURN changed;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN NULL;
END $$;

-- Throttle a queue: nothing is claimed from it until the cool-down is over. The nth cool-down in a row takes min(base x growth^(n-1), max_seconds),
-- unless `seconds` gives its length. One level is dropped for each `quiet_seconds` without a throttle. Throttles during a cool-down come from jobs that
-- had begun before it. They do not raise the level, and they never shorten the cool-down. Returns 'throttled', 'missing' (there is no such queue)
-- or 'locked': a host sends it on the session that writes results, so it waits for no session that keeps the row of the queue locked.
CREATE FUNCTION pgworkers.throttle_queue(name text, seconds double precision, base_seconds double precision, growth double precision,
                                   max_seconds double precision, quiet_seconds double precision) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' AS $$
DECLARE
    now   timestamptz := clock_timestamp();
    found_queue pgworkers.queue;
    dropped_levels  integer;
    level   integer;
    cool_down  double precision;
BEGIN
    SELECT q.* INTO found_queue FROM pgworkers.queue q WHERE q.name = throttle_queue.name FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM pgworkers.queue q WHERE q.name = throttle_queue.name) THEN 'locked' ELSE 'missing' END;
    END IF;
    IF found_queue.throttled_until > now THEN
        level := greatest(found_queue.throttle_level, 1);
        cool_down := coalesce(throttle_queue.seconds, 0);
    ELSE
        dropped_levels := least(extract(epoch FROM now - found_queue.throttled_until) / greatest(throttle_queue.quiet_seconds, 0.001), 1000);
        level := greatest(found_queue.throttle_level - coalesce(dropped_levels, 0), 0) + 1;
        cool_down := coalesce(throttle_queue.seconds, least(throttle_queue.base_seconds * throttle_queue.growth ^ least(level - 1, 60), throttle_queue.max_seconds));
    END IF;
    UPDATE pgworkers.queue q
       SET throttled_until = greatest(q.throttled_until, now + make_interval(secs => cool_down)), throttle_level = level,
           updated_at = now
     WHERE q.name = throttle_queue.name;
    RETURN 'throttled';
END $$;

-- 4.9 Schedules ---------------------------------------------------------------------------------------------------------------------

-- Add a scope to a scoped schedule: from psql, a trigger on your table of tenants, or Python. An existing scope gets the new
-- arguments. Its first tick is the next one from now.
CREATE FUNCTION pgworkers.add_scope(schedule text, scope text, args jsonb DEFAULT '{}') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    template pgworkers.schedule;
BEGIN
    SELECT * INTO template FROM pgworkers.schedule s
     WHERE s.name = add_scope.schedule AND s.scope = '' AND s.scope_kind <> '' FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no scoped schedule %', add_scope.schedule USING ERRCODE = 'no_data_found';
    ELSIF coalesce(add_scope.scope, '') = '' THEN
        RAISE EXCEPTION 'a scope has a name' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO pgworkers.schedule AS s (name, scope, scope_kind, task, cron, every, tz, jitter, starts_at, ends_at, missed,
                                         missed_window, overlap, reentrant, args, scope_args, options, paused)
    VALUES (template.name, add_scope.scope, template.scope_kind, template.task, template.cron, template.every, template.tz,
            template.jitter, template.starts_at, template.ends_at, template.missed, template.missed_window,
            template.overlap, template.reentrant, template.args, add_scope.args, template.options, template.paused)
    ON CONFLICT ON CONSTRAINT schedule_pkey
    DO UPDATE SET scope_args = excluded.scope_args, revision = s.revision + 1, changed_at = now()
     WHERE s.scope_args IS DISTINCT FROM excluded.scope_args;
    RETURN FOUND;
END $$;

-- Remove a scope. Its jobs go on. Returns false if there was none.
CREATE FUNCTION pgworkers.remove_scope(schedule text, scope text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgworkers.schedule s
     WHERE s.name = remove_scope.schedule AND s.scope = remove_scope.scope AND s.scope <> '';
    RETURN FOUND;
END $$;

-- 4.10 Partitions -------------------------------------------------------------------------------------------------------------------

-- Make the daily partitions of history and attempt, from today to `days_ahead` days from now (UTC). Returns how many were missing. A
-- partition is created as a table of its own and then attached. That lets finishes go on, and locks only the default partition, which
-- it scans. So nothing is attached while the default partition is large: move_kept_rows() empties it first. It waits for a lock for at
-- most 30 ms; the next call makes what is missing. The bounds are written in full, independent of the caller's DateStyle and TimeZone.
CREATE FUNCTION pgworkers.make_partitions(days_ahead integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' AS $$
DECLARE
    parent text;
    day date;
    name text;
    made integer := 0;
BEGIN
    FOREACH parent IN ARRAY ARRAY['history', 'attempt'] LOOP
        CONTINUE WHEN pg_relation_size(format('pgworkers.%I', parent || '_default')::regclass) > 33554432;  -- 32 MB
        FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(0, days_ahead) n LOOP
            name := parent || to_char(day, '_YYYYMMDD');
            CONTINUE WHEN to_regclass(format('pgworkers.%I', name)) IS NOT NULL;
            BEGIN
                EXECUTE format('CREATE TABLE pgworkers.%I (LIKE pgworkers.%I INCLUDING ALL)', name, parent);
                EXECUTE format('ALTER TABLE pgworkers.%I ATTACH PARTITION pgworkers.%I FOR VALUES FROM (false, %L) TO (false, %L)',
                               parent, name, to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00',
                               to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
                made := made + 1;
            EXCEPTION
                WHEN duplicate_table OR unique_violation OR check_violation THEN
                    NULL;  -- another host was faster, or the default partition holds rows of that day
                WHEN lock_not_available THEN
                    EXIT;  -- the other days of this table need the same lock
            END;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;

-- Move the rows that must outlive a daily partition of history or attempt to the partition of kept rows: dead jobs younger than
-- `keep_dead`, jobs that another one waits for, and the attempts of such dead jobs. Of a default partition all rows are moved. The
-- partition stays attached, and the only locks are those of a DELETE and an INSERT. `state::text`: no partial index matches, so each
-- job is found by its primary key. One call reads about `max_rows` rows after the key `after_key`, in the order of ids. `next_key` is
-- the key to go on from; NULL after the last row. `moved` is NULL if another session holds one of the rows: then nothing was moved.
CREATE FUNCTION pgworkers.move_kept_rows(partition text, keep_dead interval, after_key bigint, max_rows integer, OUT next_key bigint, OUT moved integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' SET enable_seqscan = off AS $$
DECLARE
    parent text := split_part(move_kept_rows.partition, '_', 1);
    key text := CASE parent WHEN 'history' THEN 'id' ELSE 'job_id' END;
    condition text;
    job pgworkers.history;
    one pgworkers.attempt;
BEGIN
    IF move_kept_rows.partition !~ '^(history|attempt)_([0-9]{8}|default)$' THEN
        RAISE EXCEPTION '% is not a daily partition', move_kept_rows.partition USING ERRCODE = 'invalid_parameter_value';
    ELSIF move_kept_rows.partition LIKE '%default' THEN
        condition := 'true';
    ELSIF parent = 'history' THEN
        condition := '(r.state = ''dead'' AND r.finished_at > now() - $3'
                  ' OR EXISTS (SELECT FROM pgworkers.dependency d WHERE d.parent_id = r.id OFFSET 0))';
    ELSE
        condition := 'EXISTS (SELECT FROM pgworkers.history h WHERE h.id = r.job_id AND h.state::text = ''dead'''
                  ' AND h.finished_at > now() - $3 OFFSET 0)';
    END IF;
    moved := 0;
    EXECUTE format('SELECT max(p.key) FROM (SELECT r.%1$I AS key FROM pgworkers.%2$I r WHERE r.%1$I > $1 ORDER BY r.%1$I LIMIT $2) p',
                   key, move_kept_rows.partition) INTO next_key USING move_kept_rows.after_key, move_kept_rows.max_rows;
    IF next_key IS NULL THEN
        RETURN;
    ELSIF parent = 'history' THEN
        FOR job IN EXECUTE format('DELETE FROM pgworkers.%I r WHERE r.id > $1 AND r.id <= $2 AND %s RETURNING r.*', move_kept_rows.partition, condition)
             USING move_kept_rows.after_key, next_key, move_kept_rows.keep_dead LOOP
            job.kept := true;
            INSERT INTO pgworkers.history_kept SELECT job.*;
            moved := moved + 1;
        END LOOP;
    ELSE
        FOR one IN EXECUTE format('DELETE FROM pgworkers.%I r WHERE r.job_id > $1 AND r.job_id <= $2 AND %s RETURNING r.*', move_kept_rows.partition, condition)
             USING move_kept_rows.after_key, next_key, move_kept_rows.keep_dead LOOP
            one.kept := true;
            INSERT INTO pgworkers.attempt_kept SELECT one.*;
            moved := moved + 1;
        END LOOP;
    END IF;
EXCEPTION
    WHEN undefined_table THEN
        next_key := NULL;
        moved := 0;
    WHEN lock_not_available THEN
        next_key := move_kept_rows.after_key;
        moved := NULL;
END $$;

-- Drop one daily partition of history or attempt, with all its rows. Any other name is refused. Call move_kept_rows() first: this
-- copies nothing, because finishes wait while it holds its lock. Returns false if it was already gone, and NULL if it could not be
-- locked within 30 ms (a reader's transaction, a dump), so that the next call tries again.
CREATE FUNCTION pgworkers.drop_partition(name text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' AS $$
BEGIN
    IF drop_partition.name !~ '^(history|attempt)_[0-9]{8}$' THEN
        RAISE EXCEPTION '% is not a daily partition', drop_partition.name USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('DROP TABLE pgworkers.%I', drop_partition.name);
    RETURN true;
EXCEPTION
    WHEN undefined_table THEN
        RETURN false;
    WHEN lock_not_available THEN
        RETURN NULL;
END $$;

-- 4.11 Statistics and autoscaling ---------------------------------------------------------------------------------------------------

-- Add two histograms, bucket by bucket.
CREATE FUNCTION pgworkers.add_histograms(a bigint[], b bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- Called for each row of `minute_statistics`, so it has no search_path.
    SELECT ARRAY(SELECT coalesce(u.x, 0) OPERATOR(pg_catalog.+) coalesce(u.y, 0)
                   FROM ROWS FROM (pg_catalog.unnest(a), pg_catalog.unnest(b)) WITH ORDINALITY AS u (x, y, n) ORDER BY u.n)
$$;
CREATE AGGREGATE pgworkers.merge_histograms(bigint[]) (SFUNC = pgworkers.add_histograms, STYPE = bigint[], INITCOND = '{}');

-- The value below which a share `q` of a histogram lies, in seconds: the middle of its bucket, so within 10 percent.
CREATE FUNCTION pgworkers.histogram_percentile(histogram bigint[], q double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN s.n = 1 THEN 0.0005 ELSE 0.001 * power(2, (s.n - 1.5) / 4) END
      FROM (SELECT u.n, u.c, sum(u.c) OVER (ORDER BY u.n) AS upto, sum(u.c) OVER () AS total
              FROM unnest(histogram) WITH ORDINALITY AS u (c, n)) s
     WHERE s.c > 0 AND s.upto >= q * s.total
     ORDER BY s.n
     LIMIT 1
$$;

-- For autoscalers: how much there is to do in a queue, or in all queues, as the number of jobs that are ready or running. KEDA asks
-- `SELECT pgworkers.backlog('reports')` and divides by what one host works on at once. Ready jobs of a paused or throttled queue do
-- not count. Counts up to `max_count`, so that a long queue costs no more than a short one.
CREATE FUNCTION pgworkers.backlog(queue text DEFAULT NULL, max_count integer DEFAULT 10000) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH asked AS MATERIALIZED (
    SELECT q.name, q.paused OR coalesce(q.throttled_until > now(), false) AS is_closed
      FROM pgworkers.queue q
     WHERE backlog.queue IS NULL OR q.name = backlog.queue
    UNION ALL
    SELECT backlog.queue, false
     WHERE backlog.queue IS NOT NULL AND NOT EXISTS (SELECT FROM pgworkers.queue q WHERE q.name = backlog.queue)
)
SELECT least(backlog.max_count, coalesce(sum(free.jobs + held.jobs), 0) + (
           SELECT count(*) FROM (SELECT FROM pgworkers.job j
                                  WHERE j.host IS NOT NULL AND (backlog.queue IS NULL OR j.queue = backlog.queue)
                                  LIMIT backlog.max_count) r))::bigint
  FROM asked a
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs
         FROM (SELECT FROM pgworkers.job j
                WHERE j.queue = a.name AND NOT a.is_closed AND j.state = 'ready' AND NOT j.behind_limit AND j.concurrency_key IS NULL
                ORDER BY j.priority DESC, j.id
                LIMIT backlog.max_count) f) free
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs
         FROM (SELECT FROM pgworkers.job j
                WHERE j.queue = a.name AND NOT a.is_closed AND j.state = 'ready' AND (j.behind_limit OR j.concurrency_key IS NOT NULL)
                ORDER BY j.task
                LIMIT backlog.max_count) h) held
$$;


-- ===================================================================================================================================
-- Part 5. Views for people
-- ===================================================================================================================================

-- The workers of all hosts, as of their last renewals.
CREATE VIEW pgworkers.worker AS
SELECT h.id AS host, h.name AS host_name, w.*
  FROM pgworkers.host h,
       jsonb_to_recordset(h.workers) AS w (queue text, slot integer, pid integer, state text, job_id bigint,
                                           task text, since double precision, jobs integer,
                                           attempt integer, max_attempts integer, running double precision,
                                           seconds_left double precision, cpu double precision, rss bigint,
                                           stalled boolean, stop_reason text, version text);

-- Live and ended jobs together. A row that a host has claimed is 'running' here if a worker has it, as of the host's last renewal
-- (`worker` is its name), and 'claimed' otherwise: it waits in the host's buffer, or began within the last second or so. The start of
-- a job writes nothing, so the tables know no more. Payload is NULL for a role that may not read it in the table (otherwise args is
-- never NULL). Both halves have the same types: domains are cast to their base types. Otherwise the planner would not flatten the
-- UNION, and each reader would read all history, whatever its LIMIT.
CREATE VIEW pgworkers.jobs AS
SELECT id,
       CASE WHEN state = 'running' AND NOT EXISTS (
                 SELECT FROM pgworkers.host h
                  WHERE h.id = j.host AND h.workers @> jsonb_build_array(jsonb_build_object('job_id', j.id)))
            THEN 'claimed' ELSE state END AS state,
       queue::text AS queue, task::text AS task,
       CASE WHEN has_column_privilege('pgworkers.job'::regclass, 'args', 'SELECT') THEN args::jsonb END AS args,
       priority::integer AS priority, attempt::integer AS attempt, max_attempts::integer AS max_attempts, crashes::integer AS crashes,
       lease, host, created_at::timestamptz AS created_at, run_at::timestamptz AS run_at,
       claimed_at::timestamptz AS started_at, NULL::timestamptz AS finished_at, NULL::text AS verdict, NULL::jsonb AS result,
       errors[array_upper(errors, 1)] AS error, unique_key::text AS unique_key, progress::jsonb AS progress,
       CASE WHEN has_column_privilege('pgworkers.job'::regclass, 'args', 'SELECT') THEN checkpoint::jsonb END AS checkpoint,
       CASE WHEN has_column_privilege('pgworkers.job'::regclass, 'args', 'SELECT') THEN meta::jsonb END AS meta,
       cancel_at::timestamptz AS cancel_at, NULL::double precision AS duration, NULL::double precision AS cpu_seconds,
       NULL::bigint AS peak_rss, batch_id,
       CASE WHEN state = 'running'
            THEN (SELECT w.queue || '/' || w.slot FROM pgworkers.worker w WHERE w.host = j.host AND w.job_id = j.id LIMIT 1)
       END AS worker, enqueued_by::text AS enqueued_by
  FROM pgworkers.job j
UNION ALL
SELECT id, state, queue, task, CASE WHEN has_column_privilege('pgworkers.job'::regclass, 'args', 'SELECT') THEN args END,
       priority, attempt, max_attempts, crashes, lease, host, created_at, run_at, started_at, finished_at, verdict,
       CASE WHEN has_column_privilege('pgworkers.job'::regclass, 'args', 'SELECT') THEN result::jsonb END,
       CASE WHEN state <> 'succeeded' THEN errors[array_upper(errors, 1)] END, unique_key, progress,
       CASE WHEN has_column_privilege('pgworkers.job'::regclass, 'args', 'SELECT') THEN checkpoint END,
       CASE WHEN has_column_privilege('pgworkers.job'::regclass, 'args', 'SELECT') THEN meta END,
       NULL::timestamptz, duration, cpu_seconds, peak_rss, batch_id, NULL::text, enqueued_by
  FROM pgworkers.history;

-- Attempts, without the output of handlers for a role that may not read payload.
CREATE VIEW pgworkers.attempts AS
SELECT job_id, attempt, lease, host, queue, task, verdict, started_at, finished_at, duration, cpu_seconds, peak_rss, error,
       traceback, stack, exit_status,
       CASE WHEN has_column_privilege('pgworkers.attempt'::regclass, 'output', 'SELECT') THEN output END AS output,
       progress, rungs, worker, version
  FROM pgworkers.attempt;

-- The arguments that the jobs of each schedule get. NULL for a role that may not read payload.
CREATE VIEW pgworkers.schedule_args AS
SELECT name, scope,
       CASE WHEN has_column_privilege('pgworkers.schedule'::regclass, 'args', 'SELECT') THEN args || scope_args END AS args
  FROM pgworkers.schedule;

-- Each tick with its outcome. What became of the job is read from the job.
CREATE VIEW pgworkers.ticks AS
SELECT t.schedule, t.scope, t.at, t.manual, t.fired_at, t.job_id,
       CASE WHEN j.id IS NOT NULL THEN j.state::text
            WHEN t.job_id IS NULL THEN 'skipped'
            ELSE 'forgotten' END AS outcome,             -- forgotten: the job is past its retention
       t.reason, j.attempt, j.started_at, j.finished_at, j.duration, j.result,
       CASE WHEN jsonb_typeof(j.result -> 'rows') = 'number' THEN (j.result ->> 'rows')::numeric END AS rows,
       CASE WHEN j.verdict IN ('error', 'discarded', 'bad_result') THEN 'handler_error'
            WHEN j.verdict IN ('host_lost', 'lease_lost') THEN 'stale'
            WHEN j.verdict <> 'succeeded' THEN j.verdict END AS error_code,
       j.error
  FROM pgworkers.tick t
  LEFT JOIN LATERAL (SELECT * FROM pgworkers.jobs v WHERE v.id = t.job_id
                      ORDER BY v.finished_at DESC NULLS FIRST LIMIT 1) j ON true;

-- `minute_statistics` with percentiles, one row for each minute, queue and task.
CREATE VIEW pgworkers.statistics AS
SELECT s.minute, s.queue, s.task,
       coalesce(sum(s.count) FILTER (WHERE s.verdict = 'started'), 0)::bigint AS started,
       coalesce(sum(s.count) FILTER (WHERE s.verdict = 'succeeded'), 0)::bigint AS succeeded,
       coalesce(sum(s.count) FILTER (WHERE s.verdict NOT IN ('started', 'succeeded')), 0)::bigint AS unsuccessful,
       coalesce(jsonb_object_agg(s.verdict, s.count) FILTER (WHERE s.verdict <> 'started'), '{}') AS verdicts,
       pgworkers.histogram_percentile(pgworkers.merge_histograms(s.histogram) FILTER (WHERE s.verdict <> 'started'), 0.5) AS duration_p50,
       pgworkers.histogram_percentile(pgworkers.merge_histograms(s.histogram) FILTER (WHERE s.verdict <> 'started'), 0.95) AS duration_p95,
       pgworkers.histogram_percentile(pgworkers.merge_histograms(s.histogram) FILTER (WHERE s.verdict <> 'started'), 0.99) AS duration_p99,
       pgworkers.histogram_percentile(pgworkers.merge_histograms(s.histogram) FILTER (WHERE s.verdict = 'started'), 0.5) AS wait_p50,
       pgworkers.histogram_percentile(pgworkers.merge_histograms(s.histogram) FILTER (WHERE s.verdict = 'started'), 0.95) AS wait_p95,
       pgworkers.histogram_percentile(pgworkers.merge_histograms(s.histogram) FILTER (WHERE s.verdict = 'started'), 0.99) AS wait_p99,
       sum(s.cpu) AS cpu_seconds
  FROM pgworkers.minute_statistics s
 GROUP BY s.minute, s.queue, s.task;


-- ===================================================================================================================================
-- Part 6. The first partitions
-- ===================================================================================================================================

SELECT pgworkers.make_partitions(3);
