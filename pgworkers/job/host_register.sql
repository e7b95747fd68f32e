-- Insert the row of this run of a master. Registering again under the same id renews the row, also if it was pruned.
INSERT INTO pgworkers.host (id, name, pid, label, app, version, queues, tasks, lease, metrics, newest_migration)
VALUES (%(host)s::uuid, %(name)s::text, %(pid)s::integer, %(label)s::text, %(app)s::text, %(version)s::text,
        %(queues)s::text[], %(tasks)s::text[], make_interval(secs => %(lease)s::double precision), %(metrics)s::text,
        %(newest_migration)s::integer)
ON CONFLICT (id) DO UPDATE
   SET name = excluded.name, pid = excluded.pid, label = excluded.label, app = excluded.app, version = excluded.version,
       queues = excluded.queues, tasks = excluded.tasks, lease = excluded.lease, metrics = excluded.metrics,
       newest_migration = excluded.newest_migration, renewed_at = now()
RETURNING id
