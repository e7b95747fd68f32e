-- A text that identifies this database and schema: the server's number from initdb, the database's number, the schema. No index: one row.
SELECT (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c)::text || '/' || d.oid || '/' || 'pgworkers.job'::regclass::oid
  FROM pg_catalog.pg_database d
 WHERE d.datname = current_database()
