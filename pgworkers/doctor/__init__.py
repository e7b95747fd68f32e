"""The doctor: what is wrong, why it matters, and the command that mends it.

`machine` reads the facts of this machine, the `.sql` files those of the database; everything else here is a pure judgement,
facts in, findings out, and is tested twice: with facts written down, and with the real situation made. `examine` runs the
judgements in order. Who calls it: `pgworkers doctor`.

What it may touch: nothing. The session is read-only, every statement has the control statements' timeout, and a role that
may not see something gets a finding that says so instead of an error. The one thing it sends is a notification on a channel
of its own, to see it come back.

- `finding`: what a check says, and the tolerances it judges by.
- `machine`, `local`: this machine: limits, cgroups, the service manager.
- `server`: version, round trip, clock, pooler, schema, connections, notifications.
- `storage`: who holds back vacuum, dead rows, autovacuum, indexes.
- `cluster`: hosts, leader, queues, tasks, schedules.
- `work`: what is stuck, what waits and why.
"""
