-- Notify all idle hosts of new jobs of these queues for a while, because this host found a job that the notified host had not claimed: until
-- the row of that host is too old to be chosen. Guard: the host's own rows. Index: idle_host_host.
UPDATE pgworkers.idle_host a
   SET notify_all_until = now() + h.lease / 3
  FROM pgworkers.host h
 WHERE h.id = %(host)s::uuid AND a.host = h.id AND a.queue = ANY (%(queues)s::text[])
RETURNING a.queue
