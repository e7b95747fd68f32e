-- What a host saw since it last wrote, added to the rows of those minutes. One statement, in the order of the key, so that hosts
-- that write at once do not deadlock. Index: the primary key. The database clock says which minute an age means.
WITH seen AS MATERIALIZED (
    SELECT date_trunc('minute', now() - make_interval(secs => s.age)) AS minute, s.queue, s.task, s.verdict,
           sum(s.count)::bigint AS count, sum(s.seconds) AS seconds, sum(s.cpu) AS cpu,
           pgworkers.merge_histograms(s.histogram::bigint[]) AS histogram
      FROM unnest(%(ages)s::double precision[], %(queues)s::text[], %(tasks)s::text[], %(verdicts)s::text[],
                  %(counts)s::bigint[], %(seconds)s::double precision[], %(cpus)s::double precision[],
                  %(histograms)s::text[]) AS s (age, queue, task, verdict, count, seconds, cpu, histogram)
     GROUP BY 1, 2, 3, 4
     ORDER BY 1, 2, 3, 4
)
INSERT INTO pgworkers.minute_statistics AS t (minute, queue, task, verdict, count, seconds, cpu, histogram)
SELECT minute, queue, task, verdict, count, seconds, cpu, histogram FROM seen
ON CONFLICT (minute, queue, task, verdict) DO UPDATE
   SET count = t.count + excluded.count, seconds = t.seconds + excluded.seconds, cpu = t.cpu + excluded.cpu,
       histogram = pgworkers.add_histograms(t.histogram, excluded.histogram)
RETURNING 1
