"""The app that is measured. The environment says what it is made of, so that one file serves every measurement.

BENCH_KIND what a handler does (noop, cpu, sleep10) · BENCH_MAX_JOBS jobs of a worker's life · BENCH_QUEUES how many
further queues there are, with BENCH_EACH workers each, whose jobs do BENCH_OTHER · BENCH_IMPORT a module to import.
"""

import importlib
import os

from harness import handle

from pgworkers import App

KIND = os.environ.get("BENCH_KIND", "noop")
OTHER = os.environ.get("BENCH_OTHER", "noop")
MAX_JOBS = os.environ.get("BENCH_MAX_JOBS")
QUEUES = int(os.environ.get("BENCH_QUEUES", "0"))
EACH = int(os.environ.get("BENCH_EACH", "1"))
if os.environ.get("BENCH_IMPORT"):
    importlib.import_module(os.environ["BENCH_IMPORT"])

app = App(version="bench")
app.queue("bench", workers=2, max_jobs=int(MAX_JOBS) if MAX_JOBS else None)
others = [f"other{number}" for number in range(QUEUES)]
for name in others:
    app.queue(name, workers=EACH)
app.queue("parked", workers=1)  # no host is told to serve it


@app.task(queue="bench", retries=0)
def job(i: int) -> None:
    handle(KIND, i)


@app.task(queue="bench", retries=0)
def nap(i: int, ms: int) -> None:
    handle(f"sleep{ms}", i | os.getpid() << 32)  # who ran it is in the record, too


@app.task(queue=others[0] if others else "bench", retries=0)
def other(i: int) -> None:
    handle(OTHER, i)
