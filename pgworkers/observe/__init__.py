"""What listens: facts become log lines (`log.py`) and metrics (`metrics.py`).

`lines` is what a fact reads like, `escape` keeps texts of jobs from forging a line, `writer` never waits for a reader;
`records` are the lines of handlers' own `logging`, made in the worker.

`catalog` declares every metric, `series` are the numbers, `attempts` those of jobs, `exposition` their text, `itself` what
the master says of itself; `handlers` are the metrics of the app's own (`ctx.metrics`). `statistics` are the minutes kept in
the database, `storage` looks at our tables. `tracing` makes spans, where OpenTelemetry is installed.

Nothing here decides anything, and nothing here may delay a job: lines go through a bounded buffer to a writer thread,
metrics are counters in memory. Only the master has an observer; workers and supervisors tell their facts to it.
"""
