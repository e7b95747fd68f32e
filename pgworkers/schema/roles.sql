-- Five roles for a schema that is shared, printed by `pgworkers migrate roles`. Run it as a role that may create roles and
-- owns the schema (or is a superuser), after `migrate up`, and again after each later one: it takes everything away and
-- gives what is below. Grant the roles to your logins: GRANT pgworkers_worker TO app;
--
--   pgworkers_owner      owns everything: migrations
--   pgworkers_worker     a host (`pgworkers run`) and the handlers on it
--   pgworkers_operator   looks at everything, cancels, retries, pauses, tunes
--   pgworkers_viewer     looks at everything
--   pgworkers_enqueue    calls pgworkers.enqueue(), sees nothing
BEGIN;

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['pgworkers_owner', 'pgworkers_worker', 'pgworkers_operator', 'pgworkers_viewer',
                                'pgworkers_enqueue'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = role) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
        END IF;
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
        SELECT 'TYPE', t.oid::pg_catalog.regtype::text
          FROM pg_catalog.pg_type t
         WHERE t.typnamespace = 'pgworkers'::pg_catalog.regnamespace AND t.typtype = 'e'
        UNION ALL
        SELECT CASE p.prokind WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END, p.oid::pg_catalog.regprocedure::text
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'pgworkers'::pg_catalog.regnamespace
    LOOP
        EXECUTE pg_catalog.format('ALTER %s %s OWNER TO pgworkers_owner', one.kind, one.name);
    END LOOP;
    -- These act for whoever may call them, with the owner's rights: enqueuing shows nothing of other jobs, and a host can make
    -- and drop daily partitions without owning a table. Each has a fixed search_path (enqueue_now: says of every name where it is
    -- from) and refuses names that are not its own.
    FOR one IN
        SELECT p.oid::pg_catalog.regprocedure::text AS name FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'pgworkers'::pg_catalog.regnamespace
           AND p.proname IN ('enqueue', 'enqueue_now', 'make_partitions', 'drop_partition')
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s SECURITY DEFINER', one.name);
    END LOOP;
END $$;

-- Nobody else, whatever was granted before.
REVOKE ALL ON SCHEMA pgworkers FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_viewer, pgworkers_enqueue;
REVOKE ALL ON ALL TABLES IN SCHEMA pgworkers
  FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_viewer, pgworkers_enqueue;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgworkers
  FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_viewer, pgworkers_enqueue;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgworkers
  FROM PUBLIC, pgworkers_worker, pgworkers_operator, pgworkers_viewer, pgworkers_enqueue;

GRANT USAGE ON SCHEMA pgworkers TO pgworkers_worker, pgworkers_operator, pgworkers_viewer, pgworkers_enqueue;
-- Every command looks first whether it speaks this schema.
GRANT SELECT ON pgworkers.migration TO pgworkers_enqueue;
GRANT EXECUTE ON FUNCTION pgworkers.enqueue TO pgworkers_enqueue;
GRANT EXECUTE ON FUNCTION pgworkers.enqueue_now TO pgworkers_enqueue;

GRANT SELECT ON ALL TABLES IN SCHEMA pgworkers TO pgworkers_viewer, pgworkers_operator, pgworkers_worker;
GRANT EXECUTE ON FUNCTION pgworkers.percentile, pgworkers.add, pgworkers.merged, pgworkers.lane, pgworkers.backlog, pgworkers.tell
   TO pgworkers_viewer;

-- What operators may change: wishes, not the record of what happened.
GRANT INSERT, UPDATE, DELETE ON pgworkers.job, pgworkers.history, pgworkers.dependency TO pgworkers_operator;
GRANT UPDATE ON pgworkers.queue, pgworkers.batch TO pgworkers_operator;
GRANT INSERT, UPDATE, DELETE ON pgworkers.concurrency, pgworkers.schedule TO pgworkers_operator;
GRANT INSERT, UPDATE ON pgworkers.tick, pgworkers.request TO pgworkers_operator;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgworkers TO pgworkers_operator, pgworkers_worker;
REVOKE EXECUTE ON FUNCTION pgworkers.make_partitions, pgworkers.drop_partition FROM pgworkers_operator;

-- A host writes everything but the record of migrations.
GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgworkers TO pgworkers_worker;
REVOKE INSERT, UPDATE, DELETE ON pgworkers.migration FROM pgworkers_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA pgworkers TO pgworkers_worker, pgworkers_operator;

COMMIT;
