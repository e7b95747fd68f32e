-- What has been applied. Made before the first migration; each migration locks it. `serves`: the newest migration of the oldest code that
-- works on the schema after this migration.
CREATE TABLE IF NOT EXISTS pgworkers.migration (
    version    integer PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    serves     integer     NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
