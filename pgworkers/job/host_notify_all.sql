-- This host found a job that the notified host had not claimed: until that host's row is too old to be chosen, every sleeping host is
-- notified of new jobs of these queues. Guard: the host's own rows. Index: asleep_host.
UPDATE pgworkers.asleep a
   SET notify_all_until = now() + h.lease / 3
  FROM pgworkers.host h
 WHERE h.id = %(host)s::uuid AND a.host = h.id AND a.queue = ANY (%(queues)s::text[])
RETURNING a.queue
