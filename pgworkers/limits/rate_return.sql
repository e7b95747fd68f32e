-- Return tokens that were taken ahead and not used. Index: the primary key.
UPDATE pgworkers.rate_bucket b
   SET tokens = least(b.burst, b.tokens + %(count)s::integer)
 WHERE b.scope = %(scope)s::text
RETURNING b.tokens
