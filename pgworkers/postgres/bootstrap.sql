-- What has been applied. Made before the first migration, under the migration lock.
CREATE TABLE IF NOT EXISTS pgworkers.migration (
    version    integer PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
