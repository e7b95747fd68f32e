-- Daily partitions that ended longer ago than the longest retention: the setting's or a queue's. Their day is in their name.
SELECT child.relname::text
  FROM pg_catalog.pg_inherits i
  JOIN pg_catalog.pg_class child ON child.oid = i.inhrelid
 WHERE i.inhparent IN ('pgworkers.history'::regclass, 'pgworkers.attempt'::regclass)
   AND child.relname ~ '^(history|attempt)_[0-9]{8}$'
   AND (to_date(right(child.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'
       <= now() - (SELECT greatest(make_interval(secs => %(retention)s::double precision),
                                   max(coalesce(q.retention, q.declared_retention)))
                     FROM pgworkers.queue q)
 ORDER BY right(child.relname, 8), child.relname
