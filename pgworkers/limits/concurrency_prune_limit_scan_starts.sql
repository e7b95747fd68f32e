-- Delete some marks of limits that were made long ago. Deleting a mark is safe while claims run: a count without it begins earlier and finds the
-- same jobs (docs/adr/24). A limit that needs its mark, because a snapshot is held while its jobs come and go, makes a new one every few hundred jobs.
-- So an old mark belongs to a limit that is quiet, or whose dead entries are vacuumed. Index: limit_scan_start_since. Skips rows that others have locked.
DELETE FROM pgworkers.limit_scan_start m
 WHERE m.ctid = ANY (ARRAY(SELECT o.ctid
                             FROM pgworkers.limit_scan_start o
                            WHERE o.since < now() - make_interval(secs => %(older)s::double precision)
                            ORDER BY o.since
                            LIMIT %(limit)s::bigint
                              FOR UPDATE SKIP LOCKED))
RETURNING m.nth
