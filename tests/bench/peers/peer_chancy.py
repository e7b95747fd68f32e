"""variants: default (1 worker, ProcessExecutor concurrency=--procs, eager_polling, polling 1 s) | proc20 (2 workers... concurrency 20 process pool is clipped to procs) | thread (--procs workers, ThreadedExecutor concurrency 10, eager)
default polling without eager_polling is one batch per polling_interval (5 s), so eager is the only sensible throughput config."""

import importlib.metadata as md
import logging

from chancy import Chancy, Queue, Worker
from chancy_app import bench
from harness import *

DB = "bench_chancy"


class P(Peer):
    name = "chancy"
    db = DB

    def version(self):
        return md.version("chancy")

    async def reset(self):
        recreate_db(DB)
        async with Chancy(dsn(DB)) as c:
            await c.migrate()
            v = self.a.variant
            if v == "thread":
                q = Queue(
                    "default",
                    concurrency=10,
                    executor="chancy.executors.thread.ThreadedExecutor",
                    polling_interval=1,
                    eager_polling=True,
                )
            elif v == "nomax":
                q = Queue(
                    "default",
                    concurrency=self.a.procs,
                    polling_interval=1,
                    eager_polling=True,
                    executor_options={"maximum_jobs_per_worker": 100000},
                )
            else:
                q = Queue("default", concurrency=self.a.procs, polling_interval=1, eager_polling=True)
            await c.declare(q, upsert=True)

    def open(self):
        self.c = Chancy(dsn(DB))
        self.c.sync_pool.open()

    def close(self):
        self.c.sync_pool.close()

    def enqueue_one(self, i):
        self.c.sync_push(bench.job.with_kwargs(i=i))

    def enqueue_bulk(self, ids):
        for _ in self.c.sync_push_many([bench.job.with_kwargs(i=i) for i in ids], batch_size=1000):
            pass

    def remaining(self):
        return int(sql(DB, "select count(*) from chancy_jobs where state not in ('succeeded','failed')"))

    def worker_cmds(self, procs, kind):
        return [[sys.executable, __file__, "worker", "--variant", self.a.variant]] * (
            procs if self.a.variant == "thread" else 1
        )

    async def worker(self):
        logging.basicConfig(level=logging.WARNING)
        async with Chancy(dsn(DB), log=logging.getLogger("c")) as c:
            async with Worker(c) as w:
                await w.wait_for_shutdown()


if __name__ == "__main__":
    main(P)
