"""variants: default (prefork -c 2, acks_late, prefetch multiplier 4) | p1 (prefetch 1). One parent + N pool children; --procs is -c."""

import importlib.metadata as md

import redis
from celery_app import app, job
from harness import *


class P(Peer):
    name = "celery"
    pg = False
    bulk_chunk = 1000

    def version(self):
        return md.version("celery") + "/redis"

    def reset(self):
        redis.Redis(port=REDIS_PORT).flushall()

    def open(self):
        self.r = redis.Redis(port=REDIS_PORT)

    def enqueue_one(self, i):
        job.delay(i)

    def enqueue_bulk(self, ids):  # no bulk API: reuse one producer
        with app.producer_pool.acquire(block=True) as p:
            for i in ids:
                job.apply_async((i,), producer=p)

    def remaining(self):
        return self.r.llen("celery") + self.r.hlen("unacked")

    def worker_cmds(self, procs, kind):
        os.environ["BENCH_PREFETCH"] = "1" if self.a.variant == "p1" else "4"
        return [
            [
                os.path.dirname(sys.executable) + "/celery",
                "-A",
                "celery_app",
                "worker",
                "-P",
                "prefork",
                "-c",
                str(procs),
                "-l",
                "WARNING",
                "-n",
                "bench@h",
            ]
        ]


if __name__ == "__main__":
    main(P)
