"""`pgworkers doctor`: report problems, why they matter, and the command that fixes each.

`checks` runs every check in order. A check has two parts: a query (a `.sql` file) or a reader that collects facts, and a
pure function that turns facts into findings. They are grouped by subject: this machine, the server, its storage, the
cluster, and its jobs. `findings` has the result of a check and the thresholds.

The doctor changes nothing. Each query of a check runs in a read-only transaction with the timeout of control statements;
the clock, the migration status and the test notification run outside of one. If a query fails, for example because the
login may not read a table, its check is a finding that says so, and the others still run. The only thing that is sent is
a notification on a channel of its own.
"""
