-- End the sessions that the handler of a dead attempt opened with ctx.connect(). Their application_name contains the job and its lease (cut
-- like each application_name). Guard: only this database, only our own role, never this session.
SELECT pg_terminate_backend(a.pid)
  FROM unnest(%(ids)s::bigint[], %(leases)s::int[]) AS dead (id, lease)
  JOIN pg_catalog.pg_stat_activity a
    ON a.application_name = left('pgworkers' || ' job ' || dead.id || ' lease ' || dead.lease, 63)
 WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
