"""The life of a row: everything that may happen to a job in the database, one verb a module.

Each verb is a function that returns a `Query`: a statement from the `.sql` file beside it, its parameters, and how its
rows are read. Who calls it, and when, is none of its business: there are no loops, no clocks and no connections here (but
for COPY, which needs one to stream to). The database clock decides everything.

    scheduled -> ready -> running -> succeeded | dead | cancelled

`model` holds the six states, the seventh that readers see (`claimed`) and the legal moves; docs/reference/states.md
draws them. After a claim every write names the lease it was given: `WHERE id = ... AND lease = ... AND state =
'running'`, checked under the row lock. Zero rows is an answer (the lease is lost), never an error. Statements that touch
many rows lock them in id order or skip what is locked, so that they cannot deadlock with each other. A row that ends
leaves `job` for `history` in the statement that ends it.

A cancel is a wish: `finish` wins over one that comes later; `retry`, `release` and `rescue` find it under the row lock
and end the job as cancelled, so that nothing starts after an acknowledged cancel.

- Hosts: `host`, `claim`, `renew`, `progress`, `finish`, `retry`, `release`; `asleep` says of what they want to be told,
  `mine` and `locked` what they ask when an answer was lost or a row is held; `backend` ends sessions of handlers;
  `set_aside` ends jobs whose data makes every claim fail.
- The leader: `lead`, then `look` for what is due: `promote`, `rescue`, `archive`, `link` (followers of other jobs);
  `depth` and `strangers` for gauges.
- Those who enqueue: `new` is a job to be, `enqueue` one, `copying` many, `children` with the end of another.
- People: `cancel`, `discard`, `requeue`, `purge`, `queue`, `request`; they read `show`, `standing` and `watch`.

`postmortem` is what is known of an attempt, `reading` what people see of JSON.
`clean` and the arithmetic of `retry` are pure. Data that a handler left behind is cleaned before it becomes a parameter.
May import: postgres, specs, clock, errors. Called by: the master, the API, the command line.
"""
