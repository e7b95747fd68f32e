-- Insert ticks and their jobs. Guard: a schedule fires only under the revision it was planned with, checked by the row lock; one that was
-- changed, paused, removed or fired in the meantime, or is locked, is left alone. The primary key of tick decides: only ticks that were
-- inserted get jobs. Index: primary keys only.
WITH asked AS (
    SELECT * FROM unnest(%(names)s::text[], %(scopes)s::text[], %(revisions)s::bigint[], %(planned_until)s::timestamptz[],
                         %(nexts)s::timestamptz[], %(skipped)s::bigint[])
                  AS a (name, scope, revision, planned_until, next, skipped)
),
held AS MATERIALIZED (
    SELECT s.name, s.scope, s.revision, s.scope_kind, s.task, s.args || s.scope_args AS args, s.options, s.overlap,
           s.reentrant, s.last_job, a.planned_until, a.next, a.skipped,
           EXISTS (SELECT FROM pgworkers.job j WHERE j.id = s.last_job) AS live
      FROM pgworkers.schedule s
      JOIN asked a ON s.name = a.name AND s.scope = a.scope AND s.revision = a.revision
     WHERE NOT s.paused OR %(manual)s::boolean
     ORDER BY s.name, s.scope
       FOR UPDATE OF s SKIP LOCKED
),
planned AS (
    SELECT h.*, t.at, t.at + make_interval(secs => t.jitter) AS due,
           CASE h.overlap
               WHEN 'skip' THEN NOT h.live AND row_number() OVER one = 1
               WHEN 'replace' THEN row_number() OVER one = count(*) OVER (PARTITION BY h.name, h.scope)
               ELSE true END AS makes
      FROM held h
      JOIN unnest(%(tick_names)s::text[], %(tick_scopes)s::text[], %(ats)s::timestamptz[], %(jitters)s::double precision[])
           AS t (name, scope, at, jitter) ON h.name = t.name AND h.scope = t.scope
    WINDOW one AS (PARTITION BY h.name, h.scope ORDER BY t.at)
),
numbered AS MATERIALIZED (
    SELECT p.*, CASE WHEN p.makes THEN nextval(pg_get_serial_sequence('pgworkers.job', 'id')) END AS job_id
      FROM (SELECT * FROM planned ORDER BY at, name, scope) p
),
ticked AS (
    INSERT INTO pgworkers.tick (schedule, scope, at, job_id, reason, manual)
    SELECT name, scope, at, job_id, CASE WHEN NOT makes THEN 'overlap' END, %(manual)s::boolean
      FROM numbered
    ON CONFLICT DO NOTHING
    RETURNING schedule, scope, at, job_id, reason
),
put AS (
    INSERT INTO pgworkers.job (id, state, priority, queue, task, args, max_attempts, max_crashes, run_at, expires_at,
                               deadline_at, concurrency_key, meta)
    SELECT n.job_id, CASE WHEN n.due > now() THEN 'scheduled' ELSE 'ready' END::pgworkers.job_state,
           coalesce((n.options ->> 'priority')::integer, k.priority, 0),
           coalesce(n.options ->> 'queue', k.queue, 'default'), n.task, n.args,
           CASE WHEN n.reentrant THEN coalesce(k.max_attempts, 20) ELSE 1 END,
           CASE WHEN n.reentrant THEN coalesce(k.max_crashes, 3) ELSE 1 END,
           greatest(n.due, now()),
           greatest(n.due, now()) + make_interval(secs => (n.options ->> 'expires')::double precision),
           greatest(n.due, now()) + make_interval(secs => (n.options ->> 'deadline')::double precision),
           -- one at a time: the new one waits until the one it replaces is really dead
           CASE WHEN n.overlap = 'replace' THEN 'schedule:' || n.name || '/' || n.scope END,
           jsonb_build_object('schedule', n.name, 'tick', to_jsonb(n.at))
           || CASE WHEN n.scope_kind <> '' THEN jsonb_build_object('scope_kind', n.scope_kind, 'scope', n.scope)
                   ELSE '{}' END
           || CASE WHEN %(manual)s::boolean THEN '{"manual": true}'::jsonb ELSE '{}' END
      FROM ticked t
      JOIN numbered n ON n.job_id = t.job_id
      LEFT JOIN pgworkers.task k ON k.name = n.task
     ORDER BY n.job_id
    RETURNING id, queue, task, state
),
moved AS (
    UPDATE pgworkers.schedule s
       SET revision = s.revision + 1,
           planned_until = coalesce(h.planned_until, s.planned_until),
           next_at = CASE WHEN %(manual)s::boolean THEN s.next_at ELSE h.next END,
           due_at = CASE WHEN %(manual)s::boolean THEN s.due_at ELSE coalesce(h.next, pgworkers.far_future()) END,
           skipped = s.skipped + h.skipped,
           last_at = coalesce((SELECT max(t.at) FROM ticked t WHERE t.schedule = s.name AND t.scope = s.scope), s.last_at),
           last_job = coalesce((SELECT max(t.job_id) FROM ticked t WHERE t.schedule = s.name AND t.scope = s.scope),
                               s.last_job),
           error = NULL
      FROM held h
     WHERE s.name = h.name AND s.scope = h.scope AND s.revision = h.revision
    RETURNING s.name, s.scope, h.skipped
),
replaced AS MATERIALIZED (
    SELECT pgworkers.cancel(n.last_job, 'replaced by the next tick of its schedule')
      FROM ticked t
      JOIN numbered n ON n.job_id = t.job_id
     WHERE n.overlap = 'replace' AND n.live
),
notified AS MATERIALIZED (
    SELECT pgworkers.notify_ready(queue, array_agg(task::text), count(*)) FROM put WHERE state = 'ready' GROUP BY queue
)
SELECT m.name, m.scope, m.skipped, t.at, t.job_id, t.reason, (SELECT count(*) FROM notified), (SELECT count(*) FROM replaced)
  FROM moved m
  LEFT JOIN ticked t ON t.schedule = m.name AND t.scope = m.scope
 ORDER BY t.at, m.name, m.scope
