-- Forget an operator's limit; the app's word counts again. Hosts are told to look: there may be more room now.
WITH gone AS (
    DELETE FROM pgworkers.concurrency c WHERE c.kind = %(kind)s::text AND c.name = %(name)s::text RETURNING c.name
)
SELECT name, pgworkers.notify('ready:') FROM gone
