-- End the session of a leader whose term ran out: frozen, it keeps the session and the lock, because its kernel still
-- acknowledges. Guard: pid and start of the session (the start is NULL to a role that may not end it), and never the session
-- that holds the term now. A superuser's session is left to superusers.
SELECT a.pid, pg_terminate_backend(a.pid)
  FROM pg_catalog.pg_stat_activity a
  JOIN pg_catalog.pg_roles r ON r.oid = a.usesysid
 WHERE a.pid = %(pid)s::integer AND a.backend_start = %(session_start)s::timestamptz
   AND (NOT r.rolsuper OR (SELECT me.rolsuper FROM pg_catalog.pg_roles me WHERE me.rolname = current_user))
   AND NOT EXISTS (SELECT FROM pgworkers.leader l WHERE l.pid = a.pid AND l.session_start = a.backend_start)
