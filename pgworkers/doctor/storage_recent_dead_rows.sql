-- Of the dead rows of `job`, those that jobs left which ended within two of autovacuum's rounds, two each: it need not have come for
-- them yet. The newest jobs of history are looked at, no more than could have left all. Index: the primary keys, backwards.
-- No guard: it only reads.
SELECT 2 * count(*)
  FROM (SELECT h.finished_at
          FROM pgworkers.history h
         ORDER BY h.id DESC
         LIMIT %(max_rows)s::bigint) n
 WHERE n.finished_at > now() - 2 * current_setting('autovacuum_naptime')::interval
