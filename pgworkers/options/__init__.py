"""What users write in their app, checked where it is written.

Each place where options are written has a module: `task` for `@app.task(...)`, `queue` for `app.queue(...)` and
`app.route(...)`, `schedule` for `@app.schedule(...)`, `enqueue` for `task.using(...)`. `values` checks single values,
`retries` reads everything about retries, and `arguments` turns a call of a handler into the JSON object of a job and back.

Nothing here opens a connection or starts a process. A wrong declaration raises a UsageError that says what to write instead.
"""
