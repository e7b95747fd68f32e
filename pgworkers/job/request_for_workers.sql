-- Send a request about each worker that live hosts reported at their last renewal, all or some.
WITH asked AS (
    INSERT INTO pgworkers.request (host, kind, queue, slot)
    SELECT w.host, %(kind)s::text, w.queue, w.slot
      FROM pgworkers.worker w
      JOIN pgworkers.host h ON h.id = w.host AND h.renewed_at > now() - h.lease
     WHERE (%(queue)s::text IS NULL OR w.queue = %(queue)s::text) AND (%(slot)s::integer IS NULL OR w.slot = %(slot)s::integer)
     ORDER BY w.host, w.queue, w.slot
    RETURNING id
)
SELECT id, pgworkers.notify('request:') FROM asked
