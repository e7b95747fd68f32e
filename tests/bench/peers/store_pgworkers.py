"""One cell of `scripts/bench store`: how fast a real host runs no-op jobs in a given state of the tables. One JSON line.

A fixed number of jobs waits all the time: the bench enqueues again what was done. A second queue, `mail`, gets four jobs a
second: its longest wait shows whether the load starves other queues. Every step has a bound. A cell in which no job starts
within --bound seconds ends with a rate of 0 and a note.
"""

import datetime
import importlib.metadata as md

import psycopg
from harness import *

from pgworkers.postgres.migrate import up

DB = "bench_store"
APP = os.path.join(HERE, "store_app.py")
#: How many jobs that can run wait while the backlog is of jobs that cannot.
RUNNABLE = 10_000
REFILL = 1000
KEYED = "'keyed', 'key ' || mod(n, 7)"
#: Load -> task and concurrency key of the jobs that run, and queue, task and key of the backlog that does not.
LOADS = {
    "free": ("'free', NULL::text", None),
    "keys": (KEYED, None),
    "tenants": ("'tenant', 'tenant ' || mod(n, 10000)", None),
    "limit": ("'limited', NULL::text", None),
    "unknown": ("'free', NULL::text", ("other", "'no host has this task', NULL::text")),
    "full": (KEYED, ("bench", "'full', 'tenant ' || mod(n, 10000)")),
}
#: Rows that were claimed and ended while an old snapshot is held: vacuum removes none of them.
CHURN = """
UPDATE pgworkers.job SET behind_limit = task = 'limited', state = 'running', lease = 1, attempt = 1, claimed_at = now(),
       host = '00000000-0000-0000-0000-000000000001';
DELETE FROM pgworkers.job
"""


class Host:
    """What `Workers` of the harness starts."""

    name = "store"

    def worker_cmds(self, procs, kind):
        return [
            [
                *(sys.executable, "-m", "pgworkers", "-q", "run", "-c", APP, "--dsn", dsn(DB)),
                *("-Q", "bench:2,mail:1,other:1", "--metrics", "127.0.0.1:0"),
            ]
        ]


def fill(conn, what, first, count, queue="bench"):
    """Jobs in one statement, spread over their keys."""
    conn.execute(
        "INSERT INTO pgworkers.job (queue, max_attempts, args, task, concurrency_key)"
        f" SELECT '{queue}', 1, jsonb_build_object('i', n), {what} FROM generate_series(%s::bigint, %s::bigint) n",
        [first, first + count - 1],
    )


def partition(conn, count):
    """Daily partitions of history and attempt: today and days to come, `count` of them with the default one."""
    (today,) = conn.execute("SELECT (now() AT TIME ZONE 'UTC')::date").fetchone()
    days = [today + datetime.timedelta(days=n) for n in range(count)]
    for table in ("history", "attempt"):
        for day, next_day in zip(days, days[1:]):
            conn.execute(
                f"CREATE TABLE IF NOT EXISTS pgworkers.{table}_{day:%Y%m%d} PARTITION OF pgworkers.{table}"
                f" FOR VALUES FROM (false, '{day} 00:00:00+00') TO (false, '{next_day} 00:00:00+00')"
            )


def prepare(a, conn):
    """The state of the tables that the cell is about. Returns the connection that holds an old snapshot, if any."""
    up(conn, "pgworkers")
    partition(conn, a.partitions)
    if a.load == "full":
        conn.execute("INSERT INTO pgworkers.concurrency (kind, name, slots) VALUES ('task', 'full', 0)")
    runs, waits = LOADS[a.load]
    pin = None
    if a.pinned:
        pin = psycopg.connect(dsn(DB))
        pin.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        pin.execute("SELECT pg_current_snapshot()")
        fill(conn, runs, 0, a.churn)
        conn.execute(CHURN)
    if waits is None:
        fill(conn, runs, 0, a.backlog)
    else:
        queue, what = waits
        fill(conn, what, 0, a.backlog, queue)
        fill(conn, runs, 0, RUNNABLE)
    conn.execute("VACUUM ANALYZE pgworkers.job")
    conn.execute("CHECKPOINT")
    return pin


class Mail:
    """Four jobs a second in another queue of the same host, and when they were committed."""

    def __init__(self, conn):
        self.conn, self.sent, self.next = conn, {}, time.time()

    def tick(self):
        if time.time() >= self.next:
            self.next = time.time() + 0.25
            number = -1 - len(self.sent)
            self.conn.execute(
                "SELECT pgworkers.enqueue('mail', jsonb_build_object('i', %s::bigint), 'mail')", [number]
            )
            self.sent[number] = time.time_ns()

    def figures(self, records, until):
        began = {x[0]: x[1] for x in records if x[0] < 0}
        waits = [(began.get(number, until) - at) / 1e6 for number, at in self.sent.items()]
        return dict(mail_sent=len(waits), mail_run=len(began), mail_worst_ms=round(max(waits, default=0.0)))


def wal(conn):
    return int(conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0])


def measure(a, conn, w):
    """Wait for the host and for its first job, then count for --secs."""
    end = time.time() + 60
    while not conn.execute("SELECT count(*) FROM pgworkers.host").fetchone()[0]:
        if time.time() > end or not w.alive():
            raise RuntimeError("the host did not start; see logs/worker_store.log")
        time.sleep(0.05)
    waits = RUNNABLE if LOADS[a.load][1] else a.backlog
    sent, started = waits, time.time()
    first, mail, shares = None, Mail(conn), Shares(w)
    end = started + a.bound
    before = None
    while time.time() < end:
        mail.tick()
        done = rec_count() - len(mail.sent)  # about: mail jobs that have not begun yet are no records
        if first is None and done > 0:
            first = time.time()
            end = first + 1 + a.secs
        if first and before is None and time.time() > first + 1:
            shares.mark()
            before = wal(conn)
        if sent - done < waits:
            fill(conn, LOADS[a.load][0], sent, REFILL)
            sent += REFILL
        else:
            time.sleep(0.005)
        if not w.alive():
            raise RuntimeError("the host ended; see logs/worker_store.log")
    shares.mark()
    records = rec_read()
    found = mail.figures(records, time.time_ns())
    if before is None:
        return found | dict(steady_per_s=0, note=f"no job in {a.bound:.0f} s")
    lo = (first + 1) * 1e9
    done = sum(x[0] >= 0 and lo <= x[1] < lo + a.secs * 1e9 for x in records)
    store, tree = shares.stretches()[0]
    found |= dict(first_s=round(first - started, 2), done=done, steady_per_s=round(done / a.secs))
    if not done:
        return found | dict(note="no job after the first second")
    # `shares` counts records of its own stretch; a rate of next to nothing makes these figures meaningless.
    return found | dict(store_us=store, tree_us=tree, wal_bytes_per_job=round((wal(conn) - before) / done))


def cell(a):
    recreate_db(DB)
    rec_reset()
    with psycopg.connect(dsn(DB), autocommit=True) as conn:
        pin = prepare(a, conn)
        try:
            w = Workers(Host(), 0, "noop")
            try:
                return measure(a, conn, w)
            finally:
                w.stop()
        finally:
            if pin is not None:
                pin.close()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("load", choices=LOADS)
    p.add_argument("--backlog", type=int, default=10_000)
    p.add_argument("--partitions", type=int, default=20)
    p.add_argument("--pinned", action="store_true")
    p.add_argument(
        "--churn", type=int, default=400_000, help="jobs done under the old snapshot, before the host starts"
    )
    p.add_argument("--secs", type=float, default=8.0)
    p.add_argument("--bound", type=float, default=10.0)
    given = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = cell(given)
    about = dict(kind=given.load, backlog=given.backlog, partitions=given.partitions, pinned=given.pinned)
    print(json.dumps(dict(version=md.version("pgworkers"), **about, **found)))
