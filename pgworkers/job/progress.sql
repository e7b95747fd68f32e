-- Write the progress and checkpoints that running handlers reported. NULL leaves a column as it is. Guard: id, lease, claimed_at, host and
-- state = 'running' under the row lock; rows that another session has locked are skipped (docs/adr/04). Index: the primary key, by nested loops
-- over the materialised input; BETWEEN, because with an equals sign the planner may begin with the whole index (docs/adr/05).
WITH sent AS MATERIALIZED (
    SELECT %(ids)s::bigint[] AS ids, %(leases)s::integer[] AS leases, %(claims)s::timestamptz[] AS claims,
           %(progresses)s::text[] AS progresses, %(checkpoints)s::text[] AS checkpoints
),
reported AS MATERIALIZED (
    SELECT s.*
      FROM sent
     CROSS JOIN LATERAL unnest(sent.ids, sent.leases, sent.claims, sent.progresses, sent.checkpoints)
           AS s (id, lease, claim, progress, checkpoint)
),
held AS MATERIALIZED (
    SELECT s.*
      FROM reported s
     CROSS JOIN LATERAL (
           SELECT FROM pgworkers.job j
            WHERE j.id = s.id AND j.lease = s.lease AND j.claimed_at = s.claim AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
              FOR UPDATE SKIP LOCKED) locked
)
UPDATE pgworkers.job j
   SET progress = coalesce(s.progress::jsonb, j.progress), checkpoint = coalesce(s.checkpoint::jsonb, j.checkpoint)
  FROM held s
 WHERE j.id BETWEEN s.id AND s.id AND j.lease = s.lease AND j.claimed_at = s.claim
   AND j.host IS NOT DISTINCT FROM %(host)s::uuid AND j.state = 'running'
RETURNING j.id
