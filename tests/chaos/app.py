"""The tasks of the soak, beside those of the zoo (copied next to this file). They endure any number of kills."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from zoo import app, note

from pgworkers import Ctx

AGAIN = 4.0  # seconds that an `outlast` takes under any lease but the first


@contextmanager
def noted(ctx: Ctx) -> Iterator[None]:
    """START, and how the handler was left: END, or LEFT if something was raised in it. Only a kill leaves nothing."""
    try:
        note(ctx, "START")
        yield
    except BaseException:
        note(ctx, "LEFT")
        raise
    else:
        note(ctx, "END")


# These say under which lease they ran: an end that another lease has written can be told by it.


@app.task(retries=5000, max_crashes=5000, backoff="0.2s")
def sturdy(ctx: Ctx, seconds: float = 0.0) -> int:
    with noted(ctx):
        time.sleep(seconds)
    return ctx.lease


@app.task(retries=5000, max_crashes=5000, backoff="0.2s", exclusive=True)
def alone(ctx: Ctx, seconds: float = 0.0) -> int:
    """Must never run twice at the same time, whatever is cut off."""
    with noted(ctx):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.02)
    return ctx.lease


@app.task(retries=5000, max_crashes=5000, backoff="0.2s", retry_verdicts={"host_lost": 0.2})
def outlast(ctx: Ctx, seconds: float) -> int:
    """Still runs when its host is given up, and its successor still runs when that host comes back."""
    _outlast(ctx, seconds)
    return ctx.lease


@app.task(retries=5000, max_crashes=5000, backoff="0.2s", retry_verdicts={"host_lost": 0.2}, exclusive=True)
def outlast_alone(ctx: Ctx, seconds: float) -> int:
    """Would still run: the fence must end it before."""
    _outlast(ctx, seconds)
    return ctx.lease


def _outlast(ctx: Ctx, seconds: float) -> None:
    """In a quiet phase (the gate is open) it ends at once, so that phases and their bound stay short."""
    gate = os.environ["PGWORKERS_LEDGER"] + ".open"
    with noted(ctx):
        until = time.monotonic() + (seconds if ctx.lease == 1 else AGAIN)
        while time.monotonic() < until and not os.path.exists(gate):
            time.sleep(0.02)


@app.task(retries=5000, max_crashes=5000, backoff="0.2s", concurrency=3, concurrency_per_key=2)
def limited(ctx: Ctx, seconds: float = 0.0) -> int:
    """No more than three at once in the whole cluster, and two of one key."""
    with noted(ctx):
        time.sleep(seconds)
    return ctx.lease


@app.schedule("* * * * * *", name="beat", missed="all")
@app.task(retries=5000, max_crashes=5000, backoff="0.2s")
def beat(ctx: Ctx) -> None:
    with noted(ctx):
        pass


@app.task(retries=5000, max_crashes=5000, backoff="0.2s")
def gather(ctx: Ctx) -> int:
    """What comes after a batch."""
    with noted(ctx):
        return int((ctx.meta or {}).get("batch", 0))


@app.task(retries=1, max_crashes=2, timeout="1s", backoff="0.2s")
def stuck(ctx: Ctx) -> None:
    """Swallows everything; only its timeout ends it."""
    note(ctx, "START")
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
