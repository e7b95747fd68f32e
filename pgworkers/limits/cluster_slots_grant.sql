-- Grant workers of a queue to hosts. The SQL function keeps the sum within the total, and waits for no lock longer than 30 ms.
SELECT pgworkers.grant_cluster_slots(%(queue)s::text, %(total)s::integer, %(hosts)s::uuid[], %(wanted)s::integer[],
                             %(clock)s::timestamptz)
