"""An app whose handlers use prometheus_client as any other program does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

from prometheus_client import Counter, Gauge, Histogram

from pgworkers import App, Ctx

app = App(name="counting")
for part in os.environ.get("ZOO_QUEUES", "default:2").split(","):
    queue, workers = part.split(":")
    app.queue(queue, workers=int(workers))

PAGES = Counter("shop_pages_total", "Pages drawn.", ["format"])
SECONDS = Histogram("shop_page_seconds", "Seconds for one page.", buckets=(0.1, 1.0))
IN_HAND = Gauge("shop_in_hand", "Pages in hand.", multiprocess_mode="livesum")
LAST = Gauge("shop_last_page", "The last page of each worker.")
IDS = Counter("shop_ids_total", "Too many series.", ["id"])
RESERVED = Counter("pgworkers_jobs_started_total", "A name that is ours.")


def note(ctx: Ctx, kind: str) -> None:
    """One line of the ledger."""
    fd = os.open(os.environ["PGWORKERS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        stamp = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(fd, f"{kind} {ctx.job} {ctx.lease} {ctx.attempt} {os.getpid()} {stamp}\n".encode())
    finally:
        os.close(fd)


@app.task(retries=0)
def draw(ctx: Ctx, is_killed: bool = False) -> None:
    note(ctx, "START")
    IN_HAND.inc()
    for _ in range(40):
        PAGES.labels(format="pdf").inc()
    SECONDS.observe(0.5)
    LAST.set(7)
    RESERVED.inc()
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    IN_HAND.dec()
    note(ctx, "END")


def _draw_in_child() -> None:
    PAGES.labels(format="png").inc()


@app.task
def fork(ctx: Ctx) -> None:
    """Counts in two processes of its own at the same time."""
    note(ctx, "START")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(_draw_in_child, [()] * 10)
        pool.close()
        pool.join()
    note(ctx, "END")


@app.task
def many(ctx: Ctx) -> None:
    note(ctx, "START")
    for number in range(300):
        IDS.labels(id=str(number)).inc()
    note(ctx, "END")


@app.task
def corrupt(ctx: Ctx) -> None:
    """Overwrites the files of its worker, as a bug in C could."""
    note(ctx, "START")
    directory = os.environ["PROMETHEUS_MULTIPROC_DIR"]
    for name in os.listdir(directory):
        if name.endswith(".db"):
            with open(os.path.join(directory, name), "r+b") as file:
                file.write(b"\xff\xff\xff\x7f" + b"\x01" * 60)
    note(ctx, "END")
