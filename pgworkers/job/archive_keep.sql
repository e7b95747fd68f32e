-- Move a portion of what must outlive a daily partition to the partition of kept rows. The SQL function takes row locks only.
SELECT k.next, k.moved
  FROM pgworkers.keep_rows(%(name)s::text, make_interval(secs => %(dead)s::double precision),
                           coalesce(%(after)s::bigint, -9223372036854775808), %(portion)s::integer) k
