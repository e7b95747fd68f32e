"""How fast it is, beside the machine's own limit and beside its peers; run by scripts/bench, never by the test suite.

- `place`    the scratch directory: a Postgres of our own with durable commits, a Redis, the peers' environments
- `jobs`     one measurement: a command that prints one JSON line, and where it is kept (results are resumed, not repeated)
- `plans`    which measurements belong to quick, to each phase of peers, to the curve
- `store`    the cells of `scripts/bench store` and their table
- `bars`     what must be reached, what was, and what that makes: met or missed
- `report`   tables for the terminal and pages for docs/performance
- `alone`    one worker without a master and a database: its CPU per very short job (run by itself)
- `peers/`   the harness itself and one script per peer: they run in environments of their own and import nothing from here

All are measured by the same clock at the same place, inside the handler; rounds are interleaved; only ratios within
one run are claims.
"""
