"""variants: default (2 processes x 8 threads, dramatiq's default threads) | t1 (1 thread per process)"""

import importlib.metadata as md

import redis
from dramatiq_app import job
from harness import *


class P(Peer):
    name = "dramatiq"
    pg = False

    def version(self):
        return md.version("dramatiq") + "/redis"

    def reset(self):
        redis.Redis(port=REDIS_PORT).flushall()

    def open(self):
        self.r = redis.Redis(port=REDIS_PORT)

    def enqueue_one(self, i):
        job.send(i)

    def enqueue_bulk(self, ids):
        for i in ids:
            job.send(i)  # no bulk API

    def remaining(self):
        return self.r.hlen("dramatiq:default.msgs")

    def worker_cmds(self, procs, kind):
        return [
            [
                os.path.dirname(sys.executable) + "/dramatiq",
                "dramatiq_app",
                "--processes",
                str(procs),
                "--threads",
                "1" if self.a.variant == "t1" else "8",
            ]
        ]


if __name__ == "__main__":
    main(P)
