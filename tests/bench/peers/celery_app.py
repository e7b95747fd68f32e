import os

from celery import Celery
from harness import REDIS_PORT, handle

KIND = os.environ.get("BENCH_KIND", "noop")
app = Celery("bench", broker=f"redis://127.0.0.1:{REDIS_PORT}/0")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "4")),
    broker_connection_retry_on_startup=True,
)


@app.task(name="job", acks_late=True)
def job(i):
    handle(KIND, i)
