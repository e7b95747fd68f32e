-- A queue's row is made if it is missing and never overwritten: what operators tuned stays.
INSERT INTO pgworkers.queue (name)
SELECT name FROM unnest(%(names)s::text[]) AS q (name) ORDER BY name
ON CONFLICT (name) DO NOTHING
RETURNING name
