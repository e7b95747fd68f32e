import os

from chancy import job
from harness import handle

KIND = os.environ.get("BENCH_KIND", "noop")


@job(queue="default")
def bench(*, i: int):
    handle(KIND, i)
