"""variants: default (async handler that calls sync fn via asyncio.to_thread, 16 slots/process) | inline (fn called inline in async handler, 16 slots) | w1 (1 slot/process, to_thread) | w100 (inline, 100 slots)"""

import importlib.metadata as md
import os
import sys
from dataclasses import dataclass

import awa
from harness import *

DB = "bench_awa"
KIND = os.environ.get("BENCH_KIND", "noop")


@dataclass
class BenchJob:
    i: int


class P(Peer):
    name = "awa"
    db = DB

    def version(self):
        return md.version("awa-pg")

    def reset(self):
        recreate_db(DB)
        c = awa.Client(dsn(DB))
        c.migrate()
        c.install_queue_storage()
        c.close()  # queue-storage engine (0.6 default per README; plain migrate leaves "canonical" active)

    def open(self):
        self.c = awa.Client(dsn(DB), 2)

    def close(self):
        self.c.close()

    def enqueue_one(self, i):
        self.c.insert(BenchJob(i), queue="bench")

    def enqueue_bulk(self, ids):
        self.c.enqueue_many_copy([BenchJob(i) for i in ids], queue="bench")

    def remaining(self):
        return 0  # no cheap probe: queue_stats() takes seconds (22 s after a 5k drain), done_entries is not filled for successes

    def worker_cmds(self, procs, kind):
        return [[sys.executable, __file__, "worker", "--variant", self.a.variant]] * procs

    async def worker(self):
        v = self.a.variant
        c = awa.AsyncClient(dsn(DB), 10)
        if v in ("inline", "w100", "inline1"):

            @c.task(BenchJob, queue="bench")
            async def h(job):
                handle(KIND, job.args.i)
        else:

            def fn(i):
                handle(KIND, i)

            @c.task(BenchJob, queue="bench")
            async def h(job):
                await asyncio.to_thread(fn, job.args.i)

        await c.start([("bench", {"w1": 1, "inline1": 1, "w100": 100}.get(v, 16))])
        ev = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ev.set)
        await ev.wait()
        await c.shutdown()
        await c.close()


if __name__ == "__main__":
    main(P)
