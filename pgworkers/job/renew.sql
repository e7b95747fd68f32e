-- Renew the one row of this host, and with it every lease it holds; in the same round trip learn which of its jobs are
-- wished away, which it no longer owns, whether it is alone (no other host lives), what
-- time it is and the longest lease of all hosts. Guard: the host's id; a lease is lost unless id, lease, host and state = 'running'
-- still match. Locks no job. Index: the primary keys; the LIMIT keeps the lookup a nested loop.
WITH alive AS (
    UPDATE pgworkers.host h
       SET renewed_at = now(), state = %(state)s::text, workers = %(workers)s::jsonb,
           load = %(load)s::double precision, cores = %(cores)s::integer
     WHERE h.id = %(host)s::uuid
    RETURNING h.id
),
held AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::integer[]) AS h (id, lease)
)
SELECT NULL::bigint AS id, NULL::integer AS lease, EXISTS (SELECT FROM alive) AS fact,
       NOT EXISTS (SELECT FROM pgworkers.host o WHERE o.id <> %(host)s::uuid AND o.renewed_at >= now() - o.lease) AS alone,
       now() AS at, (SELECT extract(epoch FROM max(o.lease))::double precision FROM pgworkers.host o) AS longest
UNION ALL
SELECT h.id, h.lease, found.wished, NULL, NULL, NULL
  FROM held h
  LEFT JOIN LATERAL (
       SELECT j.cancel_at IS NOT NULL AS wished
         FROM pgworkers.job j
        WHERE j.id = h.id AND j.lease = h.lease AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
        LIMIT 1) found ON true
 WHERE found.wished IS NOT FALSE
