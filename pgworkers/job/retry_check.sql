-- What became of these attempts, which a retry did not write. `already`: it is on record in `attempt`, because an earlier send was committed
-- and its answer was lost. `locked`: the job still belongs to this host, and another session had locked its row. Otherwise the lease is lost.
-- Reads only, in one snapshot. Index: attempt_job of each partition; the primary key of `job`, by LATERAL and LIMIT.
SELECT e.nth, EXISTS (SELECT FROM pgworkers.attempt a
                       WHERE a.job_id = e.id AND a.lease = e.lease AND a.started_at = e.claim AND a.host = %(host)s::uuid
                         AND a.verdict = e.verdict) AS already, ours.held IS NOT NULL AS locked
  FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(claims)s::timestamptz[], %(verdicts)s::text[])
       WITH ORDINALITY AS e (id, lease, claim, verdict, nth)
  LEFT JOIN LATERAL (
       SELECT true AS held
         FROM pgworkers.job j
        WHERE j.id = e.id AND j.lease = e.lease AND j.claimed_at = e.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid
          AND j.state = 'running'
        LIMIT 1) ours ON true
