-- serves: 0007
-- What logins that may only enqueue may enqueue. A login without a row here, and without a row of a role that it is a member of, may
-- enqueue everything. Logins that may insert into `job` themselves (hosts, operators, the owner) are not asked.

CREATE TABLE pgworkers.enqueue_grant (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    role        text        NOT NULL,                    -- a login, or a role that logins are members of
    queue       text        NOT NULL DEFAULT '*',        -- a queue's name, or '*': each
    task        text        NOT NULL DEFAULT '*',        -- a task's name, or '*': each
    max_waiting integer,                                 -- as many jobs of this grant may wait at once; NULL: any number
    may_replace boolean     NOT NULL DEFAULT false,      -- on_conflict => 'replace' also of what others enqueued
    granted_at  timestamptz NOT NULL DEFAULT now(),
    granted_by  text        NOT NULL DEFAULT session_user,
    CONSTRAINT enqueue_grant_once UNIQUE (role, queue, task),
    CONSTRAINT enqueue_grant_names_fit CHECK (octet_length(role) BETWEEN 1 AND 63 AND octet_length(queue) BETWEEN 1 AND 200
                                              AND octet_length(task) BETWEEN 1 AND 500),
    CONSTRAINT enqueue_grant_waiting CHECK (max_waiting BETWEEN 0 AND 1000000)
);
-- Only jobs of grants with a bound are in it.
CREATE INDEX job_quota ON pgworkers.job (quota) WHERE quota IS NOT NULL AND host IS NULL;

-- May this login enqueue this task in this queue, under which bound, and may it replace what others enqueued? Of several grants that
-- fit, one without a bound wins, then one with room. A quota is counted, not locked: sessions at the same moment can exceed it
-- together, by what each of them has not committed.
CREATE FUNCTION pgworkers.permit(task text, queue text, OUT quota integer, OUT may_replace boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    bound boolean := false;
    fits boolean := false;
    waiting integer;
BEGIN
    may_replace := false;
    FOR one IN
        SELECT g.id, g.max_waiting, g.may_replace,
               g.queue IN ('*', permit.queue) AND g.task IN ('*', permit.task) AS fits
          FROM pgworkers.enqueue_grant g
          JOIN pg_roles r ON r.rolname = g.role
         WHERE pg_has_role(session_user, r.oid, 'MEMBER')
         ORDER BY g.max_waiting DESC NULLS FIRST, g.id
    LOOP
        bound := true;
        CONTINUE WHEN NOT one.fits;
        fits := true;
        may_replace := one.may_replace;
        IF one.max_waiting IS NULL THEN
            RETURN;
        END IF;
        SELECT count(*) INTO waiting
          FROM (SELECT FROM pgworkers.job j WHERE j.quota = one.id AND j.host IS NULL LIMIT one.max_waiting) w;
        IF waiting < one.max_waiting THEN
            quota := one.id;
            RETURN;
        END IF;
    END LOOP;
    IF fits THEN
        RAISE EXCEPTION 'as many jobs of % wait as it may have waiting', session_user
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'pgworkers grants list shows the bounds.';
    ELSIF bound THEN
        RAISE EXCEPTION '% may not enqueue task % in queue %', session_user, permit.task, permit.queue
            USING ERRCODE = 'insufficient_privilege', HINT = 'pgworkers grants list shows what it may.';
    END IF;
END $$;
