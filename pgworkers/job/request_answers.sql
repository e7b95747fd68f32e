-- Requests with their answers, as far as there are any. Index: the primary key.
SELECT r.id, r.job_id, r.queue, r.slot, r.host::text, r.done, r.answer
  FROM pgworkers.request r
 WHERE r.id = ANY (%(ids)s::bigint[])
 ORDER BY r.id
