-- Who may hold back vacuum, the oldest first: sessions of this database, prepared transactions, replication slots and
-- standbys with feedback. The first row is about ourselves: how many sessions we may not look into. Vacuum itself holds
-- nothing back. No guard: it only reads.
SELECT 'hidden' AS kind, count(*)::text AS name, NULL AS pid, NULL AS user, NULL AS application, NULL AS state,
       NULL::double precision AS age, NULL::bigint AS held_back_transactions, NULL::double precision AS query_age, NULL AS query
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.backend_type IS NULL
UNION ALL
SELECT * FROM (
    SELECT 'session', '', a.pid, a.usename::text, a.application_name, a.state,
           extract(epoch FROM clock_timestamp() - a.xact_start)::double precision,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint,
           extract(epoch FROM clock_timestamp() - a.query_start)::double precision, left(a.query, 1000)
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
       AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
     ORDER BY a.backend_xmin IS NULL AND a.backend_xid IS NULL, a.xact_start
     LIMIT 5) sessions
UNION ALL
SELECT 'prepared', p.gid, NULL, p.owner::text, NULL, NULL,
       extract(epoch FROM clock_timestamp() - p.prepared)::double precision, age(p.transaction)::bigint, NULL, NULL
  FROM pg_prepared_xacts p
 WHERE p.database = current_database()
UNION ALL
SELECT 'slot', s.slot_name::text, s.active_pid, NULL, NULL, CASE WHEN s.active THEN 'active' ELSE 'inactive' END,
       NULL, greatest(age(s.xmin), age(s.catalog_xmin))::bigint, NULL, NULL
  FROM pg_replication_slots s
 WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL
UNION ALL
SELECT 'standby', r.application_name, r.pid, r.usename::text, r.application_name, r.state, NULL, age(r.backend_xmin)::bigint,
       NULL, NULL
  FROM pg_stat_replication r
 WHERE r.backend_xmin IS NOT NULL
