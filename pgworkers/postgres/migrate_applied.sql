-- The migrations this database has seen.
SELECT version, name, checksum, serves, applied_at FROM pgworkers.migration ORDER BY version
