"""The chaos soak: three masters, a Postgres that is crashed, a proxy before each, and faults that are drawn from a seed.

`scripts/chaos --minutes 2 --seed 7` runs it, and `.ci/run` with each change; pytest never does.

- `environment`: the server (with its own disk, which can be filled), one proxy per host and one for the enqueuer, the hosts
- `app`: the tasks that only the soak needs, in addition to those of `support/misbehaving_app.py`
- `executions`: when each handler was last seen alive, which is the end of those that were killed
- `load`: enqueues jobs of every kind and remembers the answer to each
- `nemesis`: draws kinds of faults; `process_faults`, `database_faults` and `operator_faults` define them
- `quiet_phase`: faults stop, and every live job must end within a bound that follows from the settings
- `checks`: compares the ledger with the tables, and checks that faults were injected at all
- `report`: what a person reads afterwards

The evidence is outside the system: handlers append to a ledger, the load keeps its own list of what was acknowledged, the
nemesis notes what it hit. A run that injected nothing fails.
"""
