"""An app for the tests of metrics: two queues, a schedule, handlers that end in every way."""

from __future__ import annotations

import os
import signal
import time

from pgworkers import App, Ctx

app = App(name="watched")
app.queue("default", workers=2)
app.queue("mail", cluster_workers=1)


def note(ctx: Ctx, kind: str) -> None:
    """One line of the ledger."""
    fd = os.open(os.environ["PGWORKERS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        stamp = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(fd, f"{kind} {ctx.job} {ctx.lease} {ctx.attempt} {os.getpid()} {stamp}\n".encode())
    finally:
        os.close(fd)


@app.task
def work(ctx: Ctx, seconds: float = 0.0) -> None:
    note(ctx, "START")
    ctx.metrics.counter("pages", 2, format="pdf")
    ctx.metrics.observe("size", 12.5)
    ctx.metrics.gauge("left", 3)
    time.sleep(seconds)
    note(ctx, "END")


@app.task(retries=1)
def fail(ctx: Ctx) -> None:
    note(ctx, "START")
    note(ctx, "END")
    raise ValueError("on purpose")


@app.task(timeout=0.3, retries=0)
def hang(ctx: Ctx) -> None:
    note(ctx, "START")
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


@app.task(retries=1)
def die(ctx: Ctx) -> None:
    """Ends its worker on the first attempt."""
    note(ctx, "START")
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note(ctx, "END")


@app.task(queue="mail")
def send(ctx: Ctx) -> None:
    note(ctx, "START")
    note(ctx, "END")


@app.schedule("* * * * * *")
@app.task(queue="mail")
def tick(ctx: Ctx) -> None:
    note(ctx, "START")
    note(ctx, "END")
