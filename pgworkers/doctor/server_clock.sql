-- The clock of the database, as seconds since 1970. No guard: it only reads.
SELECT extract(epoch FROM clock_timestamp())::double precision
