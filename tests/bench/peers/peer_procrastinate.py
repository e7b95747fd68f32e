"""variants: default (concurrency=1, rows kept) | c10 (concurrency=10) | del (concurrency=1, delete_jobs=always) | c10del | async (async handler inline, c10)"""

import importlib.metadata as md
import logging
import os
import sys

import procrastinate
from harness import *

DB = "bench_procrastinate"
KIND = os.environ.get("BENCH_KIND", "noop")


def make_app(connector):
    app = procrastinate.App(connector=connector)

    @app.task(name="job")
    def job(i):
        handle(KIND, i)

    @app.task(name="ajob")
    async def ajob(i):
        handle(KIND, i)

    return app, job, ajob


class P(Peer):
    name = "procrastinate"
    db = DB

    def version(self):
        return md.version("procrastinate")

    def reset(self):
        recreate_db(DB)
        c = procrastinate.SyncPsycopgConnector(conninfo=dsn(DB))
        app, *_ = make_app(c)
        with app.open():
            app.schema_manager.apply_schema()

    def open(self):
        self.app, self.job, self.ajob = make_app(procrastinate.SyncPsycopgConnector(conninfo=dsn(DB)))
        self.app.open()
        if self.a.variant == "async":
            self.job = self.ajob

    def close(self):
        self.app.close()

    def enqueue_one(self, i):
        self.job.defer(i=i)

    def enqueue_bulk(self, ids):
        self.job.batch_defer(*[{"i": i} for i in ids])

    def remaining(self):
        return int(sql(DB, "select count(*) from procrastinate_jobs where status in ('todo','doing')"))

    def fill(self, n):
        if n <= 100000:
            return None
        self.enqueue_bulk(range(1))
        sql(
            DB,
            f"""INSERT INTO procrastinate_jobs(queue_name, task_name, args) SELECT 'default','{self.job.name}', jsonb_build_object('i',g) FROM generate_series(1,{n - 1}) g""",
        )
        return True

    def worker_cmds(self, procs, kind):
        return [[sys.executable, __file__, "worker", "--variant", self.a.variant]] * procs

    async def worker(self):
        logging.basicConfig(level=logging.WARNING)
        v = self.a.variant
        app, *_ = make_app(procrastinate.PsycopgConnector(conninfo=dsn(DB)))
        async with app.open_async():
            await app.run_worker_async(
                concurrency=10 if ("c10" in v or v == "async") else 1,
                delete_jobs="always" if "del" in v else "never",
                install_signal_handlers=True,
            )


if __name__ == "__main__":
    main(P)
