"""The chaos soak: three masters, a Postgres that is crashed, a proxy before each, a nemesis that draws faults from a seed.

`scripts/chaos --minutes 2 --seed 7` runs it, `.ci/run` with each change; pytest never does. The rooms:

- `world`    the server (a disk of its own that can be filled), one proxy per host and one for the enqueuer, the hosts;
- `app`      the tasks that only the soak needs, beside the zoo's;
- `lives`    when each handler was last seen alive, which is the end of those that were killed;
- `load`     enqueues jobs of every sort and remembers what it was told about each;
- `nemesis`  deals the kinds of fault from a shuffled deck; `deaths`, `outages`, `operators` are the kinds;
- `quiet`    faults stop: everything that lives must end within a bound that follows from the settings;
- `verdict`  compares the ledger with the tables, and asks whether anything was tried at all;
- `report`   what a person reads afterwards.

The evidence is outside the system: handlers append to a ledger, the load keeps its own list of what was acknowledged, the
nemesis notes whom it hit. A run that injected nothing is red.
"""
