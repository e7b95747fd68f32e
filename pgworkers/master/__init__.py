"""The master: one process per host that holds everything and forks nothing.

It holds the database connections of the host (claim, finish, listen, duty), the sockets to all workers and the
HTTP port; it execs supervisors and never imports the user's code: a short-lived `describe` child tells it the app's queues
and tasks as data. Everything runs on one asyncio loop.

- `main` boots, serves and leaves; `boot` is what happens before the loop; `host` puts the parts together and drains.
- `dispatch` decides who runs what; `crew` is the socket to one worker; `supervisors` starts, hears and buries.
- `claims`, `ends`, `renewal`, `duties` are the four users of the database, each with its own `line`.
- `verdict` turns a report or a death into what is written. Pure.
- `http` answers scrapes.

May import from every room below; nobody imports from here but `cli`.
"""
