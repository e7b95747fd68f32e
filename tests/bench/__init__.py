"""How fast it is, compared with the limit of the machine and with its peers; run by scripts/bench, never by pytest.

- `environment`: the scratch directory: a Postgres of our own with durable commits, a Redis, the peers' environments
- `measurement`: a command that prints one JSON line, and where it is kept (results are resumed, not repeated)
- `suites`: which measurements belong to quick, to each phase of peers, to the curve
- `storage_table`: the cells of `scripts/bench store` and their table
- `targets`: what must be reached, what was reached, and whether that is met or missed
- `report`: tables for the terminal and pages for docs/performance
- `worker_cpu`: one worker without a master and a database: its CPU per very short job (run by itself)
- `peers/`: the harness itself and one script per peer: they run in environments of their own and import nothing from here

All are measured by the same clock at the same place, inside the handler; rounds are interleaved; only ratios within
one run are claims.
"""
