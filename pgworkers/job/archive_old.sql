-- Daily partitions that ended longer ago than the retention; their day is in their name.
SELECT child.relname::text
  FROM pg_catalog.pg_inherits i
  JOIN pg_catalog.pg_class child ON child.oid = i.inhrelid
 WHERE i.inhparent IN ('pgworkers.history'::regclass, 'pgworkers.attempt'::regclass)
   AND child.relname ~ '^(history|attempt)_[0-9]{8}$'
   AND (to_date(right(child.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'
       <= now() - make_interval(secs => %(retention)s::double precision)
 ORDER BY right(child.relname, 8), child.relname
