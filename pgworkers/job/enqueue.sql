-- Enqueue one job. The SQL function has the defaults of the task, the unique key (index job_unique), the idempotency key (the primary key of
-- its table), and chooses which hosts to notify. It also runs on users' connections with a search_path of theirs, so each name is qualified.
SELECT id, created
  FROM pgworkers.enqueue(
       task => %(task)s::pg_catalog.text, args => %(args)s::pg_catalog.jsonb, queue => %(queue)s::pg_catalog.text,
       priority => %(priority)s::pg_catalog.int4, run_at => %(run_at)s::pg_catalog.timestamptz,
       delay => pg_catalog.make_interval(secs => %(delay)s::pg_catalog.float8), unique_key => %(unique)s::pg_catalog.text,
       on_conflict => %(on_conflict)s::pg_catalog.text, max_attempts => %(max_attempts)s::pg_catalog.int4,
       max_crashes => %(max_crashes)s::pg_catalog.int4,
       timeout => pg_catalog.make_interval(secs => %(timeout)s::pg_catalog.float8), memory => %(memory)s::pg_catalog.int8,
       deadline => pg_catalog.make_interval(secs => %(deadline)s::pg_catalog.float8),
       expires => pg_catalog.make_interval(secs => %(expires)s::pg_catalog.float8),
       concurrency_key => %(concurrency_key)s::pg_catalog.text, meta => %(meta)s::pg_catalog.jsonb,
       after => %(after)s::pg_catalog.int8[], on_failed => %(on_failed)s::pg_catalog.text, held => %(held)s::pg_catalog.bool,
       idempotency_key => %(idempotency_key)s::pg_catalog.text,
       idempotency_window => pg_catalog.make_interval(secs => %(idempotency_window)s::pg_catalog.float8))
