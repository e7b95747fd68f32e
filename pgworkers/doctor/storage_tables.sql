-- The tables of the schema: dead and live rows, how many dead ones autovacuum waits for, whether it may, and when it came
-- last. No guard: it only reads.
WITH given AS (
    SELECT c.oid, c.relname, c.reltuples,
           (SELECT o.option_value FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_enabled')
               AS enabled,
           (SELECT o.option_value::double precision FROM pg_options_to_table(c.reloptions) o
             WHERE o.option_name = 'autovacuum_vacuum_threshold') AS threshold,
           (SELECT o.option_value::double precision FROM pg_options_to_table(c.reloptions) o
             WHERE o.option_name = 'autovacuum_vacuum_scale_factor') AS factor
      FROM pg_class c
     WHERE c.relnamespace = 'pgworkers'::regnamespace AND c.relkind = 'r'
)
SELECT g.relname::text AS name, pg_stat_get_live_tuples(g.oid) AS live_rows, pg_stat_get_dead_tuples(g.oid) AS dead_rows,
       coalesce(g.threshold, current_setting('autovacuum_vacuum_threshold')::double precision)
       + coalesce(g.factor, current_setting('autovacuum_vacuum_scale_factor')::double precision) * greatest(g.reltuples, 0)
           AS autovacuum_threshold,
       coalesce(g.enabled::boolean, true) AS is_autovacuum_enabled,
       extract(epoch FROM now() - greatest(pg_stat_get_last_autovacuum_time(g.oid), pg_stat_get_last_vacuum_time(g.oid)))
           ::double precision AS seconds_since_vacuum,
       current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean AS is_autovacuum_running
  FROM given g
 ORDER BY pg_stat_get_dead_tuples(g.oid) DESC, g.relname
