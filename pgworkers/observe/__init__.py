"""Log lines, metrics, statistics and traces.

The master turns events into log lines (`log`), into metrics for Prometheus (`metrics`) and into statistics per minute
that it writes to the database (`statistics`). Workers use `python_logging` for the records of handlers, `handler_metrics`
for `ctx.metrics`, and `tracing` for OpenTelemetry spans. `escape` keeps texts of jobs from forging a log line or a
command.

Nothing here makes a decision. If the reader of the log is slow, the master drops lines and counts them: its lines go
through a bounded buffer to a thread. Records that a handler logs are written to its stderr directly and can block it.
"""
