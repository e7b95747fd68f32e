-- Flow control and statistics: rate buckets, dependencies, batches, per-minute roll-ups. One transaction.

-- Tokens of one scope. The balance may be negative: those tokens are reserved and due later. `had` and `granted` are the last
-- answer: an upsert can return only what it wrote.
CREATE TABLE pgworkers.bucket (
    scope      text PRIMARY KEY,
    rate       double precision NOT NULL,                -- tokens a second
    burst      double precision NOT NULL,                -- as many may lie in it
    tokens     double precision NOT NULL,
    had        double precision NOT NULL DEFAULT 0,
    granted    double precision NOT NULL DEFAULT 0,
    updated_at timestamptz      NOT NULL,
    CONSTRAINT bucket_scope_fits CHECK (octet_length(scope) BETWEEN 1 AND 200),
    CONSTRAINT bucket_flows CHECK (rate > 0 AND burst >= 1)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
