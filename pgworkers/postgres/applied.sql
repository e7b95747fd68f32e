-- The migrations this database has seen.
SELECT version, name, checksum, applied_at FROM pgworkers.migration ORDER BY version
