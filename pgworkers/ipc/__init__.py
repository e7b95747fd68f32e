"""What master, supervisors and workers exchange, and in which form.

Orders and reports are frames on a socket between the master and a worker. A ticket in a pipe says which order may start.
Commands and events are packets on a socket between the master and a supervisor. The scoreboard is memory that a supervisor
shares with its workers: what each runs, and what it should stop. The report page is memory that a worker shares with the
master, for reports that are not sent yet. The lease deadline is memory that the master shares with all of them.
"""
