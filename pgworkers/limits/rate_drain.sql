-- Empty a bucket, because the service refused: no token is due for `seconds`. Tokens that are due later than that stay so. Index: the primary
-- key.
INSERT INTO pgworkers.rate_bucket AS b (scope, rate, burst, tokens, updated_at)
VALUES (%(scope)s::text, %(rate)s::double precision, %(burst)s::double precision,
        1 - %(seconds)s::double precision * %(rate)s::double precision, clock_timestamp())
ON CONFLICT (scope) DO UPDATE
   SET (tokens, updated_at) = (
       SELECT least(1 - %(seconds)s::double precision * b.rate,
                    b.tokens + b.rate * greatest(0, extract(epoch FROM c.at - b.updated_at))), c.at
         FROM (SELECT clock_timestamp() AS at) c)
RETURNING tokens
