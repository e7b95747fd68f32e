-- Grant workers of a queue to hosts, as far as its total allows; the function keeps it.
SELECT pgworkers.grant_cluster_slots(%(queue)s::text, %(total)s::integer, %(hosts)s::uuid[], %(wanted)s::integer[],
                             %(clock)s::timestamptz)
