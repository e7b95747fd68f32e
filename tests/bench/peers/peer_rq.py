"""variants: default (rq Worker: one fork 'work-horse' per job) | simple (SimpleWorker: in-process) | spawn (SpawnWorker)"""

import importlib.metadata as md

import redis
import rq
import rq_app
from harness import *
from rq.registry import StartedJobRegistry


class P(Peer):
    name = "rq"
    pg = False
    bulk_chunk = 1000

    def version(self):
        return md.version("rq") + "/redis"

    def reset(self):
        redis.Redis(port=REDIS_PORT).flushall()

    def open(self):
        self.r = redis.Redis(port=REDIS_PORT)
        self.q = rq.Queue("bench", connection=self.r)

    def enqueue_one(self, i):
        self.q.enqueue(rq_app.job, i)

    def enqueue_bulk(self, ids):
        self.q.enqueue_many([rq.Queue.prepare_data(rq_app.job, args=(i,)) for i in ids])

    def remaining(self):
        return len(self.q) + StartedJobRegistry("bench", connection=self.r).count

    def worker_cmds(self, procs, kind):
        return [[sys.executable, __file__, "worker", "--variant", self.a.variant]] * procs

    def worker(self):
        from rq.worker import SimpleWorker, SpawnWorker

        rq_app.rec_fd()
        r = redis.Redis(port=REDIS_PORT)
        v = self.a.variant
        cls = {"simple": SimpleWorker, "spawn": SpawnWorker}.get(v, rq.Worker)
        cls([rq.Queue("bench", connection=r)], connection=r).work(logging_level="WARNING")


if __name__ == "__main__":
    main(P)
