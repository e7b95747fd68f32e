import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from harness import REDIS_PORT, handle

KIND = os.environ.get("BENCH_KIND", "noop")
dramatiq.set_broker(RedisBroker(url=f"redis://127.0.0.1:{REDIS_PORT}/0"))


@dramatiq.actor
def job(i):
    handle(KIND, i)
