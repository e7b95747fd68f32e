-- What has been applied. Made before the first migration; each migration locks it.
CREATE TABLE IF NOT EXISTS pgworkers.migration (
    version    integer PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
