-- Reserve up to `want` tokens of a bucket; a new bucket is full. The balance may go below zero: then the tokens are due later, and the next
-- caller gets later ones, so waiting is fair and needs no second query. At most as many as are due within `within` seconds (NULL: any time).
-- Returns how many were granted, and the balance before.
-- Index: the primary key. Guard: the row lock of this one row; the clock is read under it.
INSERT INTO pgworkers.rate_bucket AS b (scope, rate, burst, tokens, balance_before, granted, updated_at)
SELECT %(scope)s::text, f.rate, f.burst, f.burst - least(%(want)s::integer, f.most), f.burst,
       least(%(want)s::integer, f.most), clock_timestamp()
  FROM (SELECT p.rate, p.burst, floor(p.burst + coalesce(%(within)s::double precision * p.rate, 1e9)) AS most
          FROM (SELECT %(rate)s::double precision AS rate, %(burst)s::double precision AS burst) p) f
ON CONFLICT (scope) DO UPDATE
   SET (rate, burst, balance_before, granted, tokens, updated_at) = (
       SELECT excluded.rate, excluded.burst, r.balance_before, r.granted, r.balance_before - r.granted, r.at
         FROM (SELECT q.balance_before, q.at,
                      greatest(0, least(%(want)s::integer, floor(q.balance_before + 1e-6 + coalesce(
                          %(within)s::double precision * excluded.rate, 1e9)))) AS granted
                 FROM (SELECT c.at,
                              least(excluded.burst, b.tokens + b.rate * greatest(0, extract(epoch FROM c.at - b.updated_at)))
                              AS balance_before
                         FROM (SELECT clock_timestamp() AS at) c) q) r)
RETURNING granted::integer, balance_before
