"""pgworkers itself, as a peer of the harness. One master, --procs workers of one queue.

Settings: history kept (with the partitions of as many days as that is), lease guard on, durable commits, /metrics and statistics on, everything at its default; -q, because
the peers log no line per job either.
variants: default | maxjobs1 (a fresh process for each job) | numpy (the app imports numpy)
"""

import importlib.metadata as md

import psycopg
from history_partitions import keep_days
from harness import *

from pgworkers.postgres.migrate import up

DB = "bench_pgworkers"
APP = os.path.join(HERE, "pgworkers_app.py")


def run_command(queues):
    """A host as a user would start it."""
    return [
        *(sys.executable, "-m", "pgworkers", "-q", "run", "-c", APP, "--dsn", dsn(DB)),
        *("-Q", queues, "--metrics", "127.0.0.1:0"),
    ]


class P(Peer):
    name = "pgworkers"
    db = DB
    bulk_chunk = 1_000_000  # enqueue_many streams: one call, whatever the number

    def version(self):
        return md.version("pgworkers")

    def reset(self):
        recreate_db(DB)
        with psycopg.connect(dsn(DB), autocommit=True) as conn:
            up(conn, "pgworkers")
            keep_days(conn)

    def open(self):
        import pgworkers_app as module

        self.module = module
        module.app.use_database(dsn(DB))

    def close(self):
        self.module.app.close()

    def enqueue_one(self, i):
        self.module.job.enqueue(i)

    def enqueue_bulk(self, ids):
        self.module.app.enqueue_many(self.module.job.prepare(i) for i in ids)

    def remaining(self):
        return int(sql(DB, "select count(*) from pgworkers.job"))

    def worker_cmds(self, procs, kind):
        if self.a.variant == "maxjobs1":
            os.environ["BENCH_MAX_JOBS"] = "1"
        if self.a.variant == "numpy":
            os.environ["BENCH_IMPORT"] = "numpy"
        return [run_command(f"bench:{procs}")]


if __name__ == "__main__":
    main(P)
