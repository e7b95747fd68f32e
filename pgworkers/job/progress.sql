-- What running handlers said about themselves. NULL leaves a column as it is. Guard: id, lease and state = 'running'
-- under the row lock, in id order. Index: the primary key, by nested loops over the materialised input.
WITH said AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(progresses)s::text[], %(checkpoints)s::text[])
                  AS s (id, lease, progress, checkpoint)
),
held AS MATERIALIZED (
    SELECT s.*
      FROM said s
     CROSS JOIN LATERAL (
           SELECT FROM pgworkers.job j
            WHERE j.id = s.id AND j.lease = s.lease AND j.state = 'running'
              FOR UPDATE) locked
)
UPDATE pgworkers.job j
   SET progress = coalesce(s.progress::jsonb, j.progress), checkpoint = coalesce(s.checkpoint::jsonb, j.checkpoint)
  FROM held s
 WHERE j.id = s.id AND j.lease = s.lease AND j.state = 'running'
RETURNING j.id
