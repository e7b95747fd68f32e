"""The command line: one file or folder per command.

`main` is the entry point and hides passwords from `ps`. It runs `root`, the group with the global options, which imports
a command only when it is used: `pgworkers --help` needs no psycopg, rich, app or database. A command reads its options
(`parameters`), finds the app and the database that are meant (`database`), runs queries of `job/` or calls the master,
and prints the answer (`output`, `formatting`). It decides nothing about jobs itself. `pgworkers X` is in `X.py` or
`X/command.py`. What several commands share is next to them: `job_changes` (retry, cancel, discard, purge),
`host_requests` (what a running host is asked to do) and `enqueue_job` (a job from typed words).

When a command fails, `error_report` turns the exception into one line on stderr and an exit code: 0 ok, 1 failed, 2
usage, 3 not found, 4 database unreachable, 5 schema out of date, 6 app cannot be loaded, 130 interrupted.

Requested data goes to stdout. Progress, questions, warnings and errors go to stderr, so that a pipe sees only data.
Control characters in texts of jobs are escaped, so that a job cannot write to an operator's terminal. Passwords are never
printed.
"""
