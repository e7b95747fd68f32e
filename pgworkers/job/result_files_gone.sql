-- Names of stored results that no job needs: no live job has this id, and no finished one refers to this name. A live job may be
-- about to refer to it: its worker writes the value first. OFFSET 0 looks up each id by itself, instead of walking through all jobs.
-- Index: the primary keys of job and of each partition of history.
SELECT n.name
  FROM unnest(%(names)s::text[], %(jobs)s::bigint[]) AS n (name, job)
 WHERE NOT EXISTS (SELECT FROM pgworkers.job j WHERE j.id = n.job OFFSET 0)
   AND NOT EXISTS (SELECT FROM pgworkers.history h
                    WHERE h.id = n.job AND h.result -> '$stored' ->> 'name' = n.name OFFSET 0)
