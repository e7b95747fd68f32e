-- How many connections there may be, and how many there are: of the server, the database and the role. Counted from
-- pg_stat_database, whose numbers every role may read. No guard: it only reads.
SELECT current_setting('max_connections')::integer,
       current_setting('superuser_reserved_connections')::integer
       + coalesce(current_setting('reserved_connections', true)::integer, 0),
       (SELECT sum(s.numbackends) FROM pg_stat_database s)::integer,
       d.datconnlimit,
       (SELECT s.numbackends FROM pg_stat_database s WHERE s.datid = d.oid),
       r.rolconnlimit,
       (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid)::integer,
       r.rolname
  FROM pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = current_user
