-- Insert many new jobs that are ready now and have no options. The other columns take their defaults, which is cheaper than reading them from
-- the stream. Ids come from the sequence in the order of the rows.
COPY pgworkers.job (priority, queue, task, max_attempts, max_crashes, args)
FROM STDIN
