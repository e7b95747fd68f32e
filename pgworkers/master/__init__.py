"""The master: one process per host.

It holds the database connections, dispatches jobs and starts supervisors.

Everything runs in one asyncio event loop. The master never imports the user's code: a short-lived child describes the
app's queues and tasks as data. It never forks: it execs one supervisor per queue, which forks the workers.

A job: a notification or an idle worker wakes the claimer, which claims ready jobs from Postgres. The dispatcher puts them
into the buffer of their queue and assigns them to workers, through a socket and a pipe of tickets for each worker. A worker
reports how the job ended. A verdict is made of the report, and the finisher writes results to Postgres in batches.

A death: the supervisor reports that a worker died, and how. Jobs that the worker had not started are reclaimed. The job that
it ran ends with the cause of the death. If a supervisor dies, its workers die with it; the master waits until they are gone,
ends their jobs and starts the next supervisor. If the master itself dies, its lease runs out and another host rescues its
jobs.

A stop request (a cancel, a lost lease, a drain) is read by a renewal of the lease or made by the drain. It goes through the
dispatcher to the supervisor, which climbs the ladder until the process is gone.

Each host has four connections: for claims, for results, for notifications and renewals, and for leadership. One host of the
cluster leads and performs the duties: due jobs, schedules, rescues, clean-up, measurements.

`host` connects the parts. Each part gets what it needs and does not know the host. This package may import from all packages
below it; `cli` and `deploy` import from it.
"""
