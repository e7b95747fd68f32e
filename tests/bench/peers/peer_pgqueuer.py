"""variants: default (batch_size=10, sync fn through asyncio.to_thread as the error text advises; asyncpg+uvloop one connection) | b50 | inline (async handler body, no thread, batch 10) | inline50"""

import importlib.metadata as md
import logging
import os
import sys

import asyncpg
import uvloop
from harness import *
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

DB = "bench_pgqueuer"
KIND = os.environ.get("BENCH_KIND", "noop")


class P(Peer):
    name = "pgqueuer"
    db = DB

    def version(self):
        return md.version("pgqueuer")

    async def reset(self):
        recreate_db(DB)
        c = await asyncpg.connect(dsn(DB))
        await Queries(AsyncpgDriver(c)).install()
        await c.close()

    async def open(self):
        self.c = await asyncpg.connect(dsn(DB))
        self.q = Queries(AsyncpgDriver(self.c))

    async def close(self):
        await self.c.close()

    async def enqueue_one(self, i):
        await self.q.enqueue("job", b"%d" % i)

    async def enqueue_bulk(self, ids):
        p = [b"%d" % i for i in ids]
        await self.q.enqueue(["job"] * len(p), p, [0] * len(p))

    async def remaining(self):
        return await self.c.fetchval("select count(*) from pgqueuer")

    def worker_cmds(self, procs, kind):
        return [[sys.executable, __file__, "worker", "--variant", self.a.variant]] * procs

    def worker(self):
        logging.basicConfig(level=logging.WARNING)
        uvloop.install()
        asyncio.run(self._w())

    async def _w(self):
        v = self.a.variant
        c = await asyncpg.connect(dsn(DB))
        pgq = PgQueuer.from_asyncpg_connection(c)
        if "inline" in v:

            @pgq.entrypoint("job")
            async def job(j):
                handle(KIND, int(j.payload))
        else:

            def fn(j):
                handle(KIND, int(j.payload))

            @pgq.entrypoint("job")
            async def job(j):
                await asyncio.to_thread(fn, j)

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
        await pgq.run(
            batch_size=50 if "50" in v else 10, dequeue_timeout=__import__("datetime").timedelta(seconds=30)
        )


if __name__ == "__main__":
    main(P)
