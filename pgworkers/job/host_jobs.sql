-- The jobs that the tables assign to this host, claimed at least `age` seconds ago and, if given, after `since`. `clock` is the database's time
-- as the host estimates it; the earlier one of both counts. The last row says up to when the scan went. Reads only. Index: job_running, by host
-- and time. Without an order: if statistics say that the table is nearly empty, the planner would read the whole primary key for it
-- (docs/adr/20).
SELECT j.id, j.lease, (date_part('epoch', j.claimed_at) * 1000000)::bigint, NULL::timestamptz
  FROM pgworkers.job j
 WHERE j.host = %(host)s::uuid AND j.claimed_at > coalesce(%(since)s::timestamptz, '-infinity')
   AND j.claimed_at <= least(now(), %(clock)s::timestamptz) - make_interval(secs => %(age)s::double precision)
UNION ALL
SELECT NULL, NULL, NULL, least(now(), %(clock)s::timestamptz) - make_interval(secs => %(age)s::double precision)
