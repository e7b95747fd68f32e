-- Delete ticks past the retention, but never the newest of a schedule; one portion of a walk in the order of time. Reads at most `portion`
-- rows. Indexes: tick_at, then the primary key for each. Guard: the row lock, which skips rows that others hold.
WITH page AS MATERIALIZED (
    SELECT t.ctid AS place, t.at, t.schedule, t.scope
      FROM pgworkers.tick t
     WHERE t.at < now() - make_interval(secs => %(retention)s::double precision)
       AND (t.at, t.schedule, t.scope) > (%(at)s::timestamptz, %(schedule)s::text, %(scope)s::text)
     ORDER BY t.at, t.schedule, t.scope
     LIMIT %(portion)s::bigint
),
locked AS MATERIALIZED (
    SELECT t.ctid AS place
      FROM pgworkers.tick t
     WHERE t.ctid = ANY (ARRAY(
               SELECT p.place
                 FROM page p
                WHERE EXISTS (SELECT FROM pgworkers.tick n
                               WHERE n.schedule = p.schedule AND n.scope = p.scope AND n.at > p.at OFFSET 0)))
       FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgworkers.tick t WHERE t.ctid = ANY (ARRAY(SELECT l.place FROM locked l)) RETURNING t.at
),
last AS MATERIALIZED (
    SELECT p.at, p.schedule, p.scope FROM page p ORDER BY p.at DESC, p.schedule DESC, p.scope DESC LIMIT 1
)
SELECT (SELECT count(*) FROM gone), l.at, l.schedule, l.scope
  FROM (SELECT count(*) AS read FROM page) c
  LEFT JOIN last l ON c.read >= %(portion)s::bigint
