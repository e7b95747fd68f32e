-- Move a portion of the rows that must outlive a daily partition to the partition of kept rows. The SQL function takes row locks only.
SELECT k.next_key, k.moved
  FROM pgworkers.move_kept_rows(%(name)s::text, make_interval(secs => %(dead)s::double precision),
                                %(after)s::bigint, %(portion)s::integer) k
