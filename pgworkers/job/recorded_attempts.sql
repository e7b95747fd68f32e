-- Which of these attempts, which a retry did not write, are on record in `attempt`: an earlier send was committed and its answer
-- was lost. Answers their places. Reads only. Index: attempt_job of each partition.
SELECT e.nth
  FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(claims)s::timestamptz[], %(verdicts)s::text[])
       WITH ORDINALITY AS e (id, lease, claimed_at, verdict, nth)
 WHERE EXISTS (SELECT FROM pgworkers.attempt a
                WHERE a.job_id = e.id AND a.lease = e.lease AND a.started_at = e.claimed_at AND a.host = %(host)s::uuid
                  AND a.verdict = e.verdict)
