-- Write the progress and checkpoints that running handlers reported. NULL leaves a column as it is. Guard: id, lease, claimed_at, host and
-- state = 'running' under the row lock. Rows that another session has locked are skipped, and their positions are returned (docs/adr/04).
-- Index: the primary key, by nested loops over the materialised input; BETWEEN, because with an equals sign the planner may begin with the
-- whole index (docs/adr/05).
WITH sent AS MATERIALIZED (
    SELECT %(ids)s::bigint[] AS ids, %(leases)s::integer[] AS leases, %(claims)s::timestamptz[] AS claims,
           %(progresses)s::text[] AS progresses, %(checkpoints)s::text[] AS checkpoints
),
reported AS MATERIALIZED (
    SELECT r.*
      FROM sent
     CROSS JOIN LATERAL unnest(sent.ids, sent.leases, sent.claims, sent.progresses, sent.checkpoints) WITH ORDINALITY
           AS r (id, lease, claim, progress, checkpoint, nth)
),
held AS MATERIALIZED (
    SELECT r.*
      FROM reported r
     CROSS JOIN LATERAL (
           SELECT FROM pgworkers.job j
            WHERE j.id = r.id AND j.lease = r.lease AND j.claimed_at = r.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
              FOR UPDATE SKIP LOCKED) locked
),
saved AS (
    UPDATE pgworkers.job j
       SET progress = coalesce(r.progress::jsonb, j.progress), checkpoint = coalesce(r.checkpoint::jsonb, j.checkpoint)
      FROM held r
     WHERE j.id BETWEEN r.id AND r.id AND j.lease = r.lease AND j.claimed_at = r.claim
       AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
    RETURNING j.id
)
SELECT (SELECT count(*) FROM saved) AS count, NULL::bigint AS nth
UNION ALL
SELECT NULL, r.nth
  FROM reported r
 CROSS JOIN LATERAL (
       SELECT FROM pgworkers.job j
        WHERE j.id = r.id AND j.lease = r.lease AND j.claimed_at = r.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
        LIMIT 1) ours
 WHERE r.nth <> ALL (ARRAY(SELECT nth FROM held))
