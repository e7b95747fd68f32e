-- Which of these ends, which a finish did not write, are on record in `history`: an earlier send was committed and its answer
-- was lost. Answers their places. Reads only. Index: the primary key of each partition.
SELECT e.nth
  FROM unnest(%(ids)s::bigint[], %(leases)s::integer[], %(claims)s::timestamptz[], %(verdicts)s::text[])
       WITH ORDINALITY AS e (id, lease, claimed_at, verdict, nth)
 WHERE EXISTS (SELECT FROM pgworkers.history h
                WHERE h.id = e.id AND h.lease = e.lease AND h.started_at = e.claimed_at AND h.host = %(host)s::uuid
                  AND h.verdict = e.verdict)
