"""Proofs that many hosts keep what is promised; run by scripts/prove-hosts, too long for the test suite.

Each proof is a function of a `ProofServer` (a separate Postgres server) and `quick`. It starts real masters, injects real
faults and returns findings: a claim, its bound and the measured value. Measurements come from outside the system: the ledger
that handlers append to, /proc, pg_locks, the server's own log of statements, a calendar that knows only arithmetic.
Hosts run with the timings of production unless a proof says otherwise.
"""
