"""The command line: what a person types, and what they read back.

One file per command group. A command reads its options, asks one of the rooms below for the work (SQL verbs
of `job/`, `postgres/migrate`, the master) and says what happened; it decides nothing about jobs itself.

- `root` is the group with the global options; it knows its commands by name and imports one only when it is
  used, so that `pgworkers --help` answers at once and without psycopg, rich, a config or a database.
- `invocation` is what the global options said; `place` finds the app and the database they mean.
- `hiding` takes passwords of the command line out of `ps`.
- `failure` is the one place that turns an exception into one line on stderr and an exit code: 0 ok, 1 failed,
  2 usage, 3 not found, 4 database unreachable, 5 schema out of date, 6 app cannot be loaded, 130 interrupted.
- `output` prints rows as a table, JSON or NDJSON; `wording` says times and arguments as people do; `progress` how far
  bulk work is; `story` tells one job, `reasons` (pure) why it waits.
- `bulk` changes many jobs, `choosing` says which; `emptying` is about whole queues; `waiting` awaits jobs; `inside` reaches
  into running ones, `asking` their hosts.
- `preparing` makes a job of typed words: `values` reads them, `importing` has the app, which checks them.
- `top` is the live tree: `top_loop` runs it on `top_terminal` with what `top_database` knows; `top_model`, `top_keys`,
  `top_rows`, `top_cells` and `top_screen` are pure.
- `bench` says how fast a database is, `measuring` how, with the jobs of `benched`.
- `deploying` are the exports of `deploy/`; `variables` finds settings with a typing error; `api` and `reference` write pages
  of docs/ from the code.

What is asked for goes to stdout, everything else (progress, questions, warnings, errors) to stderr, so that a
pipe sees only data. Text that came from jobs is printed with its control characters escaped: a job must not
be able to paint on an operator's terminal. Passwords are never printed.
"""
