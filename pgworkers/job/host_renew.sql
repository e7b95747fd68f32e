-- Renew the row of this host, and with it each lease it holds. The same round trip returns: for which of its jobs a cancel was requested or the
-- deadline changed, which jobs it no longer owns, whether no other host lives, how many live hosts share a queue with it, the time, and the
-- longest lease of all hosts. Guard: the host's id. A lease is lost unless id, lease, claimed_at, host and state = 'running' still match;
-- `rescued` says that a leader rescued the job (index attempt_job). Locks no job. Index: the primary keys; the LIMIT keeps the lookup a nested
-- loop.
WITH alive AS (
    UPDATE pgworkers.host h
       SET renewed_at = now(), state = %(state)s::text, workers = %(workers)s::jsonb, problems = %(problems)s::jsonb,
           load = %(load)s::double precision, cores = %(cores)s::integer
     WHERE h.id = %(host)s::uuid
    RETURNING h.id, h.queues
),
held AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(claims)s::timestamptz[], %(deadlines)s::double precision[])
           WITH ORDINALITY AS h (id, lease, claim, deadline, nth)
)
SELECT NULL::bigint AS nth, EXISTS (SELECT FROM alive) AS fact,
       NOT EXISTS (SELECT FROM pgworkers.host o WHERE o.id <> %(host)s::uuid AND o.renewed_at >= now() - o.lease) AS alone,
       now() AS at, (SELECT extract(epoch FROM max(o.lease))::double precision FROM pgworkers.host o) AS longest,
       NULL::double precision AS deadline, NULL::double precision AS remaining, NULL::boolean AS rescued,
       (SELECT count(*) FROM pgworkers.host o, alive a
         WHERE o.id <> a.id AND o.queues && a.queues AND o.renewed_at >= now() - o.lease) AS sharing
UNION ALL
SELECT h.nth, found.is_cancel_requested, NULL, NULL, NULL, found.deadline,
       found.deadline - extract(epoch FROM now())::double precision,
       CASE WHEN found.is_cancel_requested IS NULL THEN EXISTS (
            SELECT FROM pgworkers.attempt a
             WHERE a.job_id = h.id AND a.lease = h.lease AND a.started_at = h.claim AND a.verdict = 'host_lost') END,
       NULL
  FROM held h
  LEFT JOIN LATERAL (
       SELECT j.cancel_at IS NOT NULL AS is_cancel_requested, extract(epoch FROM j.deadline_at)::double precision AS deadline
         FROM pgworkers.job j
        WHERE j.id = h.id AND j.lease = h.lease AND j.claimed_at = h.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
        LIMIT 1) found ON true
 WHERE found.is_cancel_requested IS NOT FALSE OR found.deadline IS DISTINCT FROM h.deadline
