-- serves: 0002
-- Schedules and their ticks.

-- One row for each schedule (scope '') and for each scope of a scoped one. A row fires if it has a scope exactly when its
-- definition is scoped: the row '' of a scoped schedule is only the template that its scopes are made from.
CREATE TABLE pgworkers.schedule (
    name          text        NOT NULL,
    scope         text        NOT NULL DEFAULT '',
    -- What a deploy declares. A changed one takes effect from the change.
    scope_kind    text        NOT NULL DEFAULT '',       -- "tenant"; '': not scoped
    task          text        NOT NULL,
    cron          text,
    every         pgworkers.seconds CHECK (every > 0),   -- seconds
    tz            text        NOT NULL DEFAULT 'UTC',
    jitter        pgworkers.seconds NOT NULL DEFAULT 0,  -- seconds
    starts_at     pgworkers.moment,                           -- no tick before it; the anchor of an interval
    ends_at       pgworkers.moment,                           -- no tick at or after it
    missed        text        NOT NULL DEFAULT 'latest',
    missed_window pgworkers.seconds NOT NULL DEFAULT 86400,  -- seconds; how far back 'all' goes
    overlap       text        NOT NULL DEFAULT 'allow',
    reentrant     boolean     NOT NULL DEFAULT true,
    args          jsonb       NOT NULL DEFAULT '{}',
    scope_args    jsonb       NOT NULL DEFAULT '{}',     -- of this scope; they win over args
    options       jsonb       NOT NULL DEFAULT '{}',     -- of the job: queue, priority, deadline, expires (seconds)
    -- What operators say. A deploy never touches it.
    paused        boolean     NOT NULL DEFAULT false,
    -- What happened.
    revision      bigint      NOT NULL DEFAULT 1,        -- the fence: every write raises it, every firing names it
    created_at    pgworkers.moment NOT NULL DEFAULT now(),
    changed_at    pgworkers.moment NOT NULL DEFAULT now(),
    considered_at pgworkers.moment NOT NULL DEFAULT now(),    -- ticks up to here have had their turn
    next_at       pgworkers.moment,                           -- the next tick, for people; NULL: not planned yet, or none will come
    due_at        timestamptz NOT NULL DEFAULT '-infinity',  -- when the leader looks again
    last_at       pgworkers.moment,
    last_job      bigint,
    skipped       bigint      NOT NULL DEFAULT 0,        -- ticks passed by: missed ones that the policy gave up
    error         text,                                  -- why it cannot fire
    PRIMARY KEY (name, scope),
    CONSTRAINT schedule_names_fit CHECK (octet_length(name) BETWEEN 1 AND 200 AND octet_length(scope) <= 500
                                         AND octet_length(scope_kind) <= 200),
    CONSTRAINT schedule_is_one CHECK ((cron IS NULL) <> (every IS NULL)),
    -- What one row holds must never stop the others: no host reads what Python cannot read, or computes for minutes.
    CONSTRAINT schedule_cron_fits CHECK (octet_length(cron) <= 1000 AND octet_length(tz) <= 100),
    CONSTRAINT schedule_seconds_fit CHECK (every BETWEEN 1 AND 3155760000 AND jitter BETWEEN 0 AND 3155760000
                                           AND missed_window BETWEEN 0 AND 3155760000),
    CONSTRAINT schedule_due_fits CHECK (due_at <= '9999-01-01 00:00:00+00'),  -- -infinity: at once; the upper end is never()
    CONSTRAINT schedule_missed CHECK (missed IN ('latest', 'all', 'skip')),
    CONSTRAINT schedule_overlap CHECK (overlap IN ('allow', 'skip', 'replace')),
    CONSTRAINT schedule_args_are_objects CHECK (jsonb_typeof(args) = 'object' AND jsonb_typeof(scope_args) = 'object'
                                                AND jsonb_typeof(options) = 'object')
) WITH (fillfactor = 70);
CREATE INDEX schedule_due ON pgworkers.schedule (due_at) WHERE NOT paused;

-- The primary key is why a tick cannot make two jobs. Rows of a removed schedule stay until they are old.
CREATE TABLE pgworkers.tick (
    schedule text        NOT NULL,
    scope    text        NOT NULL,
    at       pgworkers.moment NOT NULL,                  -- by the calendar; of a manual one: when it was asked for
    job_id   bigint,                                     -- NULL: no job was made
    reason   text,                                       -- why no job was made
    manual   boolean     NOT NULL DEFAULT false,
    fired_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (schedule, scope, at)
);
CREATE INDEX tick_at ON pgworkers.tick (at, schedule, scope);

-- The arguments that the jobs of each schedule get; NULL for a role that may not read payload.
CREATE VIEW pgworkers.schedule_args AS
SELECT name, scope,
       CASE WHEN has_column_privilege('pgworkers.schedule'::regclass, 'args', 'SELECT') THEN args || scope_args END AS args
  FROM pgworkers.schedule;

-- Each tick with its outcome. Nothing is written twice: what became of the job is read from the job.
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

-- Give a scoped schedule one more scope, from psql, a trigger on your table of tenants, or Python. A scope that is there
-- gets the new arguments. It counts from now.
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

-- Take a scope away; its jobs go on. False: there was none.
CREATE FUNCTION pgworkers.remove_scope(schedule text, scope text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgworkers.schedule s
     WHERE s.name = remove_scope.schedule AND s.scope = remove_scope.scope AND s.scope <> '';
    RETURN FOUND;
END $$;
