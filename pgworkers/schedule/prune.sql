-- Ticks past the retention, but never the newest of a schedule. Bounded. Index: tick_at, then the primary key.
WITH old AS MATERIALIZED (
    SELECT t.schedule, t.scope, t.at
      FROM pgworkers.tick t
     WHERE t.at < now() - make_interval(secs => %(retention)s::double precision)
       AND EXISTS (SELECT FROM pgworkers.tick n WHERE n.schedule = t.schedule AND n.scope = t.scope AND n.at > t.at)
     ORDER BY t.at
     LIMIT %(limit)s::bigint
       FOR UPDATE OF t SKIP LOCKED
)
DELETE FROM pgworkers.tick t
 USING old o
 WHERE t.schedule = o.schedule AND t.scope = o.scope AND t.at = o.at
RETURNING t.at
