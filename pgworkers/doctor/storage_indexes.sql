-- The indexes on the tables of the schema, the largest first: size, entries, scans, whether they are valid, and how much was
-- written to their tables. Entries: an upper bound, from the last vacuum or analyze and the growth of the table
-- since; NULL: unknown. Indexes of partitions are left out. No guard: it only reads.
SELECT i.relname::text AS name, t.relname::text AS "table", x.indisunique AS is_unique,
       x.indisvalid AND x.indisready AS is_valid, pg_stat_get_numscans(i.oid) AS scans, pg_relation_size(i.oid) AS size_bytes,
       CASE WHEN coalesce(pg_stat_get_last_vacuum_time(t.oid), pg_stat_get_last_autovacuum_time(t.oid),
                          pg_stat_get_last_analyze_time(t.oid), pg_stat_get_last_autoanalyze_time(t.oid)) IS NOT NULL
            THEN (greatest(i.reltuples, 0) + greatest(pg_stat_get_live_tuples(t.oid) - greatest(t.reltuples, 0), 0))::bigint
        END AS entries,
       pg_stat_get_tuples_inserted(t.oid) + pg_stat_get_tuples_updated(t.oid) AS rows_written
  FROM pg_index x
  JOIN pg_class i ON i.oid = x.indexrelid
  JOIN pg_class t ON t.oid = x.indrelid
 WHERE t.relnamespace = 'pgworkers'::regnamespace AND NOT i.relispartition AND t.relkind IN ('r', 'p')
 ORDER BY pg_relation_size(i.oid) DESC, i.relname
 LIMIT 1000
