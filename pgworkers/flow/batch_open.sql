-- A batch to be, before its jobs. Index: none, it is new.
INSERT INTO pgworkers.batch (on_failed) VALUES (%(on_failed)s::text) RETURNING id
