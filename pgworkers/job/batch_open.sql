-- A batch to be, before its jobs. Index: none, it is new. On users' connections, too: every name says where it is from.
INSERT INTO pgworkers.batch (on_failed) VALUES (%(on_failed)s::pg_catalog.text) RETURNING id
