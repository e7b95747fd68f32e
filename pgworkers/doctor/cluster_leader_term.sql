-- The host that holds the term of leadership, and for how many seconds more (see job/leader_try.sql). No guard: it only reads.
SELECT l.host, extract(epoch FROM l.valid_until - now())::double precision AS seconds_left
  FROM pgworkers.leader l
 WHERE l.host IS NOT NULL
