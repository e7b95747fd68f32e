-- Many new jobs that are ready now and have nothing special about them: the other columns take their defaults, which is a
-- third cheaper than reading them from the stream. Ids come from the sequence in the order of the rows.
COPY pgworkers.job (priority, queue, task, max_attempts, max_crashes, args)
FROM STDIN
