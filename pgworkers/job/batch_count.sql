-- How far a batch is, counted from the jobs themselves: one portion of a walk by id, and the id to go on after (NULL: that was all).
-- A job that ends keeps its id, and each range of ids is counted in one snapshot. So no job is counted twice, and none is missed.
-- Bounded by a range of `portion` ids from the first job after `after`, whatever the batch holds and by whatever plan: a LIMIT would
-- let the planner sort the whole batch. Indexes: job_batch, history_batch (only what failed is in it; the rest of what ended
-- succeeded). No guard: it only reads.
WITH reached AS MATERIALIZED (
    SELECT least((SELECT j.id FROM pgworkers.job j
                   WHERE j.batch_id = %(id)s::bigint AND j.id > %(after)s::bigint ORDER BY j.id LIMIT 1),
                 (SELECT h.id FROM pgworkers.history h
                   WHERE h.batch_id = %(id)s::bigint AND h.id > %(after)s::bigint AND h.state <> 'succeeded' ORDER BY h.id LIMIT 1))
           + %(portion)s::bigint - 1 AS id
)
SELECT b.total,
       (SELECT count(*) FROM pgworkers.job j
         WHERE j.batch_id = %(id)s::bigint AND j.id > %(after)s::bigint AND j.id <= r.id),
       (SELECT count(*) FROM pgworkers.history h
         WHERE h.batch_id = %(id)s::bigint AND h.id > %(after)s::bigint AND h.id <= r.id AND h.state <> 'succeeded'),
       (SELECT r.id
         WHERE EXISTS (SELECT FROM pgworkers.job j WHERE j.batch_id = %(id)s::bigint AND j.id > r.id)
            OR EXISTS (SELECT FROM pgworkers.history h
                        WHERE h.batch_id = %(id)s::bigint AND h.id > r.id AND h.state <> 'succeeded'))
  FROM pgworkers.batch b
 CROSS JOIN reached r
 WHERE b.id = %(id)s::bigint
