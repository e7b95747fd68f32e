-- `pgworkers bench`: how many of its jobs have ended, how long they took from the first start to the last end, and what the
-- last ones returned. Read as a whole, in a schema that is dropped afterwards.
SELECT count(*) AS count,
       coalesce(extract(epoch FROM max(finished_at) - min(started_at)), 0)::double precision AS seconds,
       coalesce(jsonb_object_agg(id, result) FILTER (WHERE id > %(after)s::bigint), '{}') AS start_times
  FROM pgworkers.history
 WHERE state = 'succeeded'
