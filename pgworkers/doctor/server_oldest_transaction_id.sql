-- Of all databases of the server the one whose oldest transaction id is used up most. No guard: it only reads.
SELECT d.datname::text, age(d.datfrozenxid)::bigint
  FROM pg_database d
 ORDER BY age(d.datfrozenxid) DESC, d.datname
 LIMIT 1
