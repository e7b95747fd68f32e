-- Marks of lanes that were due to be looked at long ago, some at a time: their lanes are empty since then. To delete one is safe beside any
-- claim, which then begins at the head of the lane (docs/adr/24). Index: lane_mark_until. Skips what others have locked.
DELETE FROM pgworkers.lane_mark m
 WHERE m.ctid = ANY (ARRAY(SELECT o.ctid
                             FROM pgworkers.lane_mark o
                            WHERE o.until < now() - make_interval(secs => %(older)s::double precision)
                            ORDER BY o.until
                            LIMIT %(limit)s::bigint
                              FOR UPDATE SKIP LOCKED))
RETURNING m.nth
