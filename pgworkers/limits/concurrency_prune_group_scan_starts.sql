-- Delete some marks of groups whose next scan from the head was due long ago: these groups have been empty since. Deleting a mark is safe while
-- claims run: the next claim begins at the head of the group (docs/adr/24). Index: group_scan_start_valid_until. Skips rows that others have locked.
DELETE FROM pgworkers.group_scan_start m
 WHERE m.ctid = ANY (ARRAY(SELECT o.ctid
                             FROM pgworkers.group_scan_start o
                            WHERE o.valid_until < now() - make_interval(secs => %(older)s::double precision)
                            ORDER BY o.valid_until
                            LIMIT %(limit)s::bigint
                              FOR UPDATE SKIP LOCKED))
RETURNING m.nth
