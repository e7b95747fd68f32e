-- Open a batch, before its jobs are enqueued. Also runs on users' connections, so each name is qualified.
INSERT INTO pgworkers.batch (on_failed) VALUES (%(on_failed)s::pg_catalog.text) RETURNING id
