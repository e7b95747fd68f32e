-- The names of all schedules. Index: the primary key.
SELECT DISTINCT s.name FROM pgworkers.schedule s ORDER BY s.name
