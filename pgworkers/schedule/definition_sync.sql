-- Write what a deploy declares: missing rows are inserted, changed ones take effect from now, all others are not written, and none is deleted.
-- Scopes that were added at run time follow their template. If the calendar changed, ticks before now are skipped. What operators set (paused)
-- stays. Index: the primary key, locked in its order.
WITH given AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset(%(specs)s::jsonb)
           AS g (name text, scope_kind text, task text, cron text, every double precision, tz text, jitter double precision,
                 starts_at timestamptz, ends_at timestamptz, missed text, missed_window double precision, overlap text,
                 reentrant boolean, args jsonb, options jsonb, paused boolean, scopes jsonb)
),
rows AS (
    SELECT g.name, '' AS scope, '{}'::jsonb AS scope_args FROM given g
    UNION ALL
    SELECT g.name, d.key, d.value FROM given g, jsonb_each(g.scopes) d
    UNION ALL
    SELECT g.name, s.scope, s.scope_args
      FROM given g
      JOIN pgworkers.schedule s ON s.name = g.name AND s.scope <> ''
     WHERE NOT g.scopes ? s.scope
),
written AS (
    INSERT INTO pgworkers.schedule AS s (name, scope, scope_kind, task, cron, every, tz, jitter, starts_at, ends_at, missed,
                                         missed_window, overlap, reentrant, args, scope_args, options, paused, due_at)
    SELECT g.name, r.scope, g.scope_kind, g.task, g.cron, g.every, g.tz, g.jitter, g.starts_at, g.ends_at, g.missed,
           g.missed_window, g.overlap, g.reentrant, g.args, r.scope_args, g.options, g.paused,
           CASE WHEN (r.scope <> '') = (g.scope_kind <> '') THEN '-infinity' ELSE pgworkers.far_future() END
      FROM rows r
      JOIN given g ON g.name = r.name
     ORDER BY g.name, r.scope
    ON CONFLICT (name, scope) DO UPDATE
       SET scope_kind = excluded.scope_kind, task = excluded.task, cron = excluded.cron, every = excluded.every,
           tz = excluded.tz, jitter = excluded.jitter, starts_at = excluded.starts_at, ends_at = excluded.ends_at,
           missed = excluded.missed, missed_window = excluded.missed_window, overlap = excluded.overlap,
           reentrant = excluded.reentrant, args = excluded.args, scope_args = excluded.scope_args,
           options = excluded.options, due_at = excluded.due_at, next_at = NULL, error = NULL, changed_at = now(),
           revision = s.revision + 1,
           planned_until = CASE
               WHEN (s.scope_kind, s.cron, s.every, s.tz, s.starts_at, s.ends_at, s.missed, s.missed_window)
                    IS DISTINCT FROM
                    (excluded.scope_kind, excluded.cron, excluded.every, excluded.tz, excluded.starts_at, excluded.ends_at,
                     excluded.missed, excluded.missed_window)
               THEN now() ELSE s.planned_until END
     WHERE (s.scope_kind, s.task, s.cron, s.every, s.tz, s.jitter, s.starts_at, s.ends_at, s.missed, s.missed_window,
            s.overlap, s.reentrant, s.args, s.scope_args, s.options)
           IS DISTINCT FROM
           (excluded.scope_kind, excluded.task, excluded.cron, excluded.every, excluded.tz, excluded.jitter,
            excluded.starts_at, excluded.ends_at, excluded.missed, excluded.missed_window, excluded.overlap,
            excluded.reentrant, excluded.args, excluded.scope_args, excluded.options)
    RETURNING s.name, s.scope
)
SELECT DISTINCT name FROM written ORDER BY name
