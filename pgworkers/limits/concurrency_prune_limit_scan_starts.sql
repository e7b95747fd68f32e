-- Marks of limits that were made long ago, some at a time. To delete one is safe beside any claim: a count without it begins earlier and finds
-- the same jobs (docs/adr/24). A limit that needs its mark, because a snapshot is held while its jobs come and go, makes a new one every few hundred
-- jobs, so an old mark belongs to a limit that is quiet, or whose dead entries are vacuumed. Index: limit_mark_since. Skips what others have locked.
DELETE FROM pgworkers.limit_mark m
 WHERE m.ctid = ANY (ARRAY(SELECT o.ctid
                             FROM pgworkers.limit_mark o
                            WHERE o.since < now() - make_interval(secs => %(older)s::double precision)
                            ORDER BY o.since
                            LIMIT %(limit)s::bigint
                              FOR UPDATE SKIP LOCKED))
RETURNING m.nth
