-- Which jobs the tables say this host holds, claimed at least `age` seconds ago and, if it is said, after `since`, by
-- `clock`, the time as the host reckons it, if that is earlier than ours; the last row
-- says how far the look went. Reads only. Index: job_running, by host and time. No order is asked for: where statistics say that the
-- table is nearly empty, the planner would walk over the whole primary key for it (docs/adr/20).
SELECT j.id, j.lease, (date_part('epoch', j.claimed_at) * 1000000)::bigint, NULL::timestamptz
  FROM pgworkers.job j
 WHERE j.host = %(host)s::uuid AND j.claimed_at > coalesce(%(since)s::timestamptz, '-infinity')
   AND j.claimed_at <= least(now(), %(clock)s::timestamptz) - make_interval(secs => %(age)s::double precision)
UNION ALL
SELECT NULL, NULL, NULL, least(now(), %(clock)s::timestamptz) - make_interval(secs => %(age)s::double precision)
