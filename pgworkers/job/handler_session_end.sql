-- The SQL of a dead execution dies with it: end the sessions that its handler opened with ctx.connect(). They carry job and
-- lease in their name (cut like every application_name). Guard: only this database, only our own role, never ourselves.
SELECT pg_terminate_backend(a.pid)
  FROM unnest(%(ids)s::bigint[], %(leases)s::int[]) AS dead (id, lease)
  JOIN pg_catalog.pg_stat_activity a
    ON a.application_name = left('pgworkers' || ' job ' || dead.id || ' lease ' || dead.lease, 63)
 WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
