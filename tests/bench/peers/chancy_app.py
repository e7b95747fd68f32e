import os
from chancy import Chancy, job
from harness import handle, dsn

KIND = os.environ.get("BENCH_KIND", "noop")


@job(queue="default")
def bench(*, i: int):
    handle(KIND, i)
