-- Six roles for a schema that is shared, printed by `pgworkers migrate roles`. Run it as a role that may create roles and
-- owns the schema (or is a superuser), after `migrate up`, and again after each later one: it takes everything away and
-- gives what is below. Grant the roles to your logins: GRANT pgworkers_worker TO app;
--
--   pgworkers_owner      owns everything: migrations
--   pgworkers_worker     a host (`pgworkers run`) and the handlers on it
--   pgworkers_operator   looks at everything, cancels, retries, pauses, tunes
--   pgworkers_payload    looks at everything
--   pgworkers_viewer     looks at everything but payload: arguments, results, checkpoints, meta and output of jobs
--   pgworkers_enqueue    calls pgworkers.enqueue(), sees nothing
BEGIN;

-- The script changes the owner of all tables and functions of the schema, so the schema must contain only what the migrations created. (OURS: their names, NEWEST: the number of the last one, put in when this is printed.)
DO $$
DECLARE
    others text;
BEGIN
    IF EXISTS (SELECT FROM pgworkers.migration m WHERE m.version > ALL ('{NEWEST}'::integer[])) THEN
        RAISE EXCEPTION 'the schema % is newer than this script; nothing was done; print it with the version that migrated the schema',
                        'pgworkers';
    END IF;
    SELECT pg_catalog.string_agg(f.name, ', ' ORDER BY f.name) INTO others
      FROM (SELECT c.relname::text AS name
              FROM pg_catalog.pg_class c
             WHERE c.relnamespace = 'pgworkers'::pg_catalog.regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                                WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'i')
            UNION ALL
            SELECT t.typname FROM pg_catalog.pg_type t
             WHERE t.typnamespace = 'pgworkers'::pg_catalog.regnamespace AND t.typtype IN ('e', 'd', 'r')
            UNION ALL
            SELECT p.proname FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'pgworkers'::pg_catalog.regnamespace) f
     WHERE f.name <> ALL ('{OURS}'::text[]) AND f.name !~ '^(history|attempt)_([0-9]{8}|default|kept)$';
    IF others IS NOT NULL THEN
        RAISE EXCEPTION 'the schema % also holds objects of others: %; nothing was done; the queue needs a schema of its own',
                        'pgworkers', others;
    END IF;
END $$;

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['pgworkers_owner', 'pgworkers_worker', 'pgworkers_operator', 'pgworkers_payload',
                                'pgworkers_viewer', 'pgworkers_enqueue'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = role) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
        END IF;
    END LOOP;
    -- Objects can be handed over only to a role that one is a member of. Superusers are members of all. Since Postgres 16
    -- the login that creates a role is not a member of it, but may grant it to itself.
    IF NOT pg_catalog.pg_has_role('pgworkers_owner', 'USAGE') THEN
        EXECUTE pg_catalog.format('GRANT pgworkers_owner TO %I', CURRENT_USER);
    END IF;
END $$;

-- Logins that what follows locks out: those that own something here, or whose sessions work here now, and that none of the roles
-- lets in afterwards.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT r.rolname, bool_or(u.owns) AS owns, bool_or(u.works) AS works
          FROM (SELECT c.relowner AS role, true AS owns, false AS works
                  FROM pg_catalog.pg_class c WHERE c.relnamespace = 'pgworkers'::pg_catalog.regnamespace
                UNION ALL
                SELECT n.nspowner, true, false FROM pg_catalog.pg_namespace n WHERE n.nspname = 'pgworkers'
                UNION ALL
                SELECT a.usesysid, false, true FROM pg_catalog.pg_stat_activity a
                 WHERE a.datname = pg_catalog.current_database() AND a.application_name LIKE 'pgworkers%') u
          JOIN pg_catalog.pg_roles r ON r.oid = u.role
         WHERE r.rolcanlogin AND NOT r.rolsuper
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles o
                            WHERE o.rolname IN ('pgworkers_owner', 'pgworkers_worker', 'pgworkers_operator', 'pgworkers_payload',
                                                'pgworkers_viewer', 'pgworkers_enqueue')
                              AND pg_catalog.pg_has_role(r.oid, o.oid, 'USAGE'))
         GROUP BY r.rolname
         ORDER BY r.rolname
    LOOP
        RAISE WARNING 'the login % % and has none of the roles: after this script it may do nothing here', one.rolname,
            CASE WHEN one.works THEN 'uses the schema now' ELSE 'owns the schema' END
            USING HINT = pg_catalog.format('GRANT %I TO %I; for hosts, %I for migrations.', 'pgworkers_worker', one.rolname,
                                           'pgworkers_owner');
    END LOOP;
END $$;

-- The owner owns: the schema, every table (with its indexes, sequences and partitions), view, type and function.
DO $$
DECLARE
    one record;
BEGIN
    EXECUTE 'ALTER SCHEMA pgworkers OWNER TO pgworkers_owner';
    FOR one IN
        SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind, c.oid::pg_catalog.regclass::text AS name
          FROM pg_catalog.pg_class c
         WHERE c.relnamespace = 'pgworkers'::pg_catalog.regnamespace AND c.relkind IN ('r', 'p', 'v')
        UNION ALL
        SELECT CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, t.oid::pg_catalog.regtype::text
          FROM pg_catalog.pg_type t
         WHERE t.typnamespace = 'pgworkers'::pg_catalog.regnamespace AND t.typtype IN ('e', 'd')
        UNION ALL
        SELECT CASE p.prokind WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END, p.oid::pg_catalog.regprocedure::text
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'pgworkers'::pg_catalog.regnamespace
    LOOP
        EXECUTE pg_catalog.format('ALTER %s %s OWNER TO pgworkers_owner', one.kind, one.name);
    END LOOP;
    -- These run with the owner's rights for each role that may call them: enqueueing shows nothing of other jobs, a host can make and drop daily
    -- partitions without owning a table, operators change history only with a row in `operation`, and a new limit counts jobs that already run.
    -- Each has a fixed search_path (enqueue_plain qualifies each name instead) and refuses names of objects that are not its own.
    FOR one IN
        SELECT p.oid::pg_catalog.regprocedure::text AS name FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'pgworkers'::pg_catalog.regnamespace
           AND p.proname IN ('enqueue', 'enqueue_plain', 'make_partitions', 'move_kept_rows', 'drop_partition', 'cancel_many', 'discard_many', 'set_deadline', 'requeue', 'purge_dead',
                             'record_retention_change', 'limit_running_jobs')
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s SECURITY DEFINER', one.name);
    END LOOP;
END $$;

-- No other role has any right, whatever was granted before.
REVOKE ALL ON SCHEMA pgworkers FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_payload, pgworkers_viewer, pgworkers_enqueue;
REVOKE ALL ON ALL TABLES IN SCHEMA pgworkers
  FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_payload, pgworkers_viewer, pgworkers_enqueue;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgworkers
  FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_payload, pgworkers_viewer, pgworkers_enqueue;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgworkers
  FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_payload, pgworkers_viewer, pgworkers_enqueue;

GRANT USAGE ON SCHEMA pgworkers
   TO pgworkers_worker, pgworkers_operator, pgworkers_payload, pgworkers_viewer, pgworkers_enqueue;
-- Each command first checks whether it supports this schema.
GRANT SELECT ON pgworkers.migration TO pgworkers_enqueue;
GRANT EXECUTE ON FUNCTION pgworkers.enqueue TO pgworkers_enqueue;
GRANT EXECUTE ON FUNCTION pgworkers.enqueue_plain TO pgworkers_enqueue;

GRANT SELECT ON ALL TABLES IN SCHEMA pgworkers TO pgworkers_payload, pgworkers_operator, pgworkers_worker;
GRANT EXECUTE ON FUNCTION pgworkers.histogram_percentile, pgworkers.add_histograms, pgworkers.merge_histograms, pgworkers.concurrency_group, pgworkers.backlog, pgworkers.notify,
                          pgworkers.far_future, pgworkers.free_slots_of_task, pgworkers.free_slots_of_key, pgworkers.worker_counts
   TO pgworkers_payload, pgworkers_viewer;

-- A viewer reads every table that has no payload, the other columns of those that have, and the views, which hide it.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT c.oid::pg_catalog.regclass::text AS name,
               (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ')
                  FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                   AND a.attname NOT IN ('args', 'scope_args', 'result', 'checkpoint', 'meta', 'output')) AS columns
          FROM pg_catalog.pg_class c
         WHERE c.relnamespace = 'pgworkers'::pg_catalog.regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
    LOOP
        IF one.name::pg_catalog.regclass IN ('pgworkers.job'::pg_catalog.regclass, 'pgworkers.history'::pg_catalog.regclass,
               'pgworkers.attempt'::pg_catalog.regclass, 'pgworkers.schedule'::pg_catalog.regclass) THEN
            EXECUTE pg_catalog.format('GRANT SELECT (%s) ON %s TO pgworkers_viewer', one.columns, one.name);
        ELSE
            EXECUTE pg_catalog.format('GRANT SELECT ON %s TO pgworkers_viewer', one.name);
        END IF;
    END LOOP;
END $$;

-- What operators may change: what should happen, not the record of what happened. The row of a job becomes its row in history, so of a live job
-- they write only the columns below, and end one only by cancel_many() and discard_many(), which insert a row into `operation`.
GRANT INSERT (id, state, priority, queue, task, args, max_attempts, max_crashes, run_at, expires_at, deadline_at, timeout, memory,
              concurrency_key, meta, batch_id, has_links) ON pgworkers.job TO pgworkers_operator;
GRANT UPDATE (behind_limit) ON pgworkers.job TO pgworkers_operator;
GRANT UPDATE (paused, workers, cluster_workers, retention, updated_at) ON pgworkers.queue TO pgworkers_operator;
GRANT UPDATE (cancelled_at) ON pgworkers.batch TO pgworkers_operator;
GRANT INSERT, UPDATE, DELETE ON pgworkers.concurrency, pgworkers.schedule, pgworkers.enqueue_grant TO pgworkers_operator;
GRANT INSERT ON pgworkers.tick TO pgworkers_operator;
GRANT INSERT, UPDATE ON pgworkers.request TO pgworkers_operator;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgworkers TO pgworkers_operator, pgworkers_worker;
REVOKE EXECUTE ON FUNCTION pgworkers.make_partitions, pgworkers.move_kept_rows, pgworkers.drop_partition, pgworkers.end_jobs,
                           pgworkers.archive_waiting_jobs
  FROM pgworkers_operator;

-- A host writes everything but the record of migrations and what enqueuers may do.
GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgworkers TO pgworkers_worker;
REVOKE INSERT, UPDATE, DELETE ON pgworkers.migration, pgworkers.enqueue_grant FROM pgworkers_worker;
-- To lock a row takes UPDATE. Without a row its limits admit no job.
REVOKE INSERT, DELETE ON pgworkers.mutex FROM pgworkers_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA pgworkers TO pgworkers_worker, pgworkers_operator;

COMMIT;
