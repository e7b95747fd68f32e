-- Move a portion of what must outlive a daily partition to the partition of kept rows. The SQL function takes row locks only.
SELECT k.next, k.moved
  FROM pgworkers.keep_rows(%(name)s::text, make_interval(secs => %(dead)s::double precision),
                           %(after)s::bigint, %(portion)s::integer) k
