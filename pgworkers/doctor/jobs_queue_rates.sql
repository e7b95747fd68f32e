-- For each queue: attempts that ended in the last five minutes, and jobs that came in them and still wait. The newest `max_rows`
-- jobs are looked at: their ids grow with time. Index: the primary keys. No guard: it only reads.
SELECT coalesce(e.queue, c.queue) AS queue, coalesce(e.ended, 0)::bigint AS ended, coalesce(c.enqueued, 0)::bigint AS enqueued
  FROM (SELECT s.queue, sum(s.count) AS ended
          FROM pgworkers.minute_statistics s
         WHERE s.minute > now() - interval '5 minutes' AND s.verdict <> 'started'
         GROUP BY s.queue) e
  FULL JOIN (SELECT n.queue, count(*) AS enqueued
               FROM (SELECT j.queue, j.created_at, j.state FROM pgworkers.job j ORDER BY j.id DESC LIMIT %(max_rows)s::integer) n
              WHERE n.created_at > now() - interval '5 minutes' AND n.state = 'ready'
              GROUP BY n.queue) c ON c.queue = e.queue
