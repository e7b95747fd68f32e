"""Limits: how fast, how many at once, and how many workers.

- `rate`: tokens per second, shared by all hosts. A bucket is one row (`rate_bucket`). A caller takes tokens ahead and sleeps
  until each is due. If a process dies, the tokens that it held are lost, and the bucket refills.
- `concurrency`: how many jobs of a task, or with one key, run at once. Operators set such limits here. The claim enforces
  them, in SQL functions (schema, part 4.3) that count running rows, so the jobs of a lost host keep their slots until they
  are rescued.
- `cluster_slots`: how many workers a queue has over all hosts. The leader grants shares, and hosts acknowledge them. The
  share of a lost host is free when its lease is over.

The clock of the database decides. `rate` also reads the local clock, to sleep until a token is due. It imports no psycopg,
because each app and each worker imports it.
"""
