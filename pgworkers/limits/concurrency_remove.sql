-- Remove an operator's limit; what the app declares applies again. Hosts are notified: more jobs may be claimable now.
WITH gone AS (
    DELETE FROM pgworkers.concurrency c WHERE c.kind = %(kind)s::text AND c.name = %(name)s::text RETURNING c.name
)
SELECT name, pgworkers.notify('ready:') FROM gone
