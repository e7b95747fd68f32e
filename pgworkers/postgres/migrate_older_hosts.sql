-- Hosts that run code which a migration does not serve.
SELECT name, pid, newest_migration FROM pgworkers.host
 WHERE newest_migration < %(serves)s::integer AND renewed_at >= now() - lease
 ORDER BY name, pid
 LIMIT 5
