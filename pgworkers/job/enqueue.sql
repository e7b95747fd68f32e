-- One new job. The SQL function knows the defaults of the task, the unique key (index job_unique) and whom to notify.
SELECT id, created
  FROM pgworkers.enqueue(
       task => %(task)s::text, args => %(args)s::jsonb, queue => %(queue)s::text, priority => %(priority)s::integer,
       run_at => %(run_at)s::timestamptz, delay => make_interval(secs => %(delay)s::double precision),
       unique_key => %(unique)s::text, on_conflict => %(on_conflict)s::text, max_attempts => %(max_attempts)s::integer,
       max_crashes => %(max_crashes)s::integer, timeout => make_interval(secs => %(timeout)s::double precision),
       memory => %(memory)s::bigint, deadline => make_interval(secs => %(deadline)s::double precision),
       expires => make_interval(secs => %(expires)s::double precision), concurrency_key => %(concurrency_key)s::text,
       meta => %(meta)s::jsonb, after => %(after)s::bigint[], on_failed => %(on_failed)s::text, held => %(held)s::boolean)
