-- How many connections there may be, and how many there are: of the server, the database and the role. Counted from
-- pg_stat_database, whose numbers every role may read. No guard: it only reads.
SELECT current_setting('max_connections')::integer AS max_connections,
       current_setting('superuser_reserved_connections')::integer
       + coalesce(current_setting('reserved_connections', true)::integer, 0) AS reserved,
       (SELECT sum(s.numbackends) FROM pg_stat_database s)::integer AS connections,
       d.datconnlimit AS max_of_database,
       (SELECT s.numbackends FROM pg_stat_database s WHERE s.datid = d.oid) AS connections_of_database,
       r.rolconnlimit AS max_of_role,
       (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid)::integer AS connections_of_role,
       r.rolname AS role
  FROM pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = current_user
