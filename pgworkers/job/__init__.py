"""Everything that happens to jobs, hosts and queues in the database.

Each function returns a `Query`: a statement from the `.sql` file with its name, its parameters, and how its rows are read.
The caller runs it, on a blocking or an async connection. There are no clocks here: the clock of the database decides.
Functions that loop take the function that runs a query. Only `copy` takes a connection, because it streams to it.

    scheduled -> ready -> running -> succeeded | dead | cancelled

`model` has these states, the seventh that readers see (`claimed`), the legal moves, and the records of a job.
docs/reference/states.md draws the moves. The way of a job: `enqueue` or `copy` inserts the row, `claim` makes it running,
`finish` ends the attempt or the job (finish, retry, release, progress), and `maintenance` is what the leader does: promote,
expire, rescue, partitions. `cancel` and `requeue` are for people, who read `queries`.

After a claim each write names the lease it was given. The guard of such a statement is id, lease, claimed_at, host and
state = 'running', checked under the row lock. Zero rows is an answer (the lease is lost), never an error. Statements that
change many rows lock them in id order or skip locked ones, so that they cannot deadlock with each other. The statement that
ends a job moves its row from `job` to `history`.

A cancel of a running job is a request. A `finish` that comes before it is noticed wins. `retry`, `release` and `rescue` find
the request under the row lock and end the job as cancelled, so nothing starts after an acknowledged cancel.

Data that a handler left behind is cleaned (`sanitize`) before it becomes a parameter.
"""
