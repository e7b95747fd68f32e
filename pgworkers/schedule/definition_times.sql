-- When each schedule last fired and when it fires next, all scopes of one together, for gauges. Paused ones and templates have no next tick.
-- With jitter a tick is due after its time by the calendar. A schedule that cannot fire is late from the time of its tick on. Index: the
-- primary key, in its order.
SELECT s.name, extract(epoch FROM max(s.last_at))::double precision,
       extract(epoch FROM min(CASE WHEN s.error IS NULL AND s.due_at > s.next_at THEN s.due_at ELSE s.next_at END)
                          FILTER (WHERE NOT s.paused AND (s.scope = '') = (s.scope_kind = '')))::double precision
  FROM pgworkers.schedule s
 GROUP BY s.name
 ORDER BY s.name
 LIMIT %(limit)s::bigint
