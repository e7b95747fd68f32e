-- Each of our tables, its partitions counted as one, and the oldest transaction that holds back vacuum in this database. Reads
-- the catalogue and the statistics only; no index of ours, no guard. Sessions of other users are seen by who may (pg_read_all_stats).
WITH tables AS (
    SELECT coalesce(p.relname, c.relname)::text AS name, sum(pg_stat_get_dead_tuples(c.oid))::bigint AS dead,
           sum(pg_total_relation_size(c.oid))::bigint AS size
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
      LEFT JOIN pg_class p ON p.oid = i.inhparent
     WHERE n.nspname = 'pgworkers' AND c.relkind = 'r'
     GROUP BY 1
),
holders AS (
    SELECT a.xact_start AS began,
           concat_ws(' ', 'pid', a.pid, a.usename, nullif(a.application_name, ''), '(' || a.state || ')') AS who
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
       AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.xact_start IS NOT NULL
       AND a.backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT x.prepared, 'prepared transaction ' || x.gid FROM pg_prepared_xacts x WHERE x.database = current_database()
),
oldest AS (SELECT began, who FROM holders ORDER BY began LIMIT 1)
SELECT t.name, t.dead, t.size, coalesce(greatest(extract(epoch FROM clock_timestamp() - o.began), 0), 0)::double precision,
       coalesce(o.who, '')
  FROM tables t
  LEFT JOIN oldest o ON true
 ORDER BY t.name
