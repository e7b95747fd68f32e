-- Insert many new jobs without unique keys. Ids come from the sequence in the order of the rows.
COPY pgworkers.job (state, priority, queue, task, max_attempts, max_crashes, run_at, expires_at, deadline_at, timeout,
                    memory, concurrency_key, meta, batch_id, has_links, args)
FROM STDIN
