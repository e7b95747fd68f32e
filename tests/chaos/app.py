"""Tasks that only the soak needs, in addition to those of `misbehaving_app.py`. They survive any number of kills."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from misbehaving_app import app, note

from pgworkers import Ctx

LATER_LEASE_SECONDS = 4.0  # that an `outlast` takes under any lease but the first


@contextmanager
def noted(ctx: Ctx) -> Iterator[None]:
    """Write START, and how the handler ended: END, or LEFT after an exception. Only a kill writes nothing."""
    try:
        note(ctx, "START")
        yield
    except BaseException:
        note(ctx, "LEFT")
        raise
    else:
        note(ctx, "END")


# These return the lease under which they ran, so that a result written under another lease is recognised.


@app.task(retries=5000, max_crashes=5000, backoff="0.2s")
def sturdy(ctx: Ctx, seconds: float = 0.0) -> int:
    with noted(ctx):
        time.sleep(seconds)
    return ctx.lease


@app.task(retries=5000, max_crashes=5000, backoff="0.2s", exclusive=True)
def alone(ctx: Ctx, seconds: float = 0.0) -> int:
    """Must never run twice at the same time, whatever connection is cut."""
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
    """Wait; in a quiet phase (the gate is open) end at once, so that phases and their bound stay short."""
    gate = os.environ["PGWORKERS_LEDGER"] + ".open"
    with noted(ctx):
        until = time.monotonic() + (seconds if ctx.lease == 1 else LATER_LEASE_SECONDS)
        while time.monotonic() < until and not os.path.exists(gate):
            time.sleep(0.02)


@app.task(retries=5000, max_crashes=5000, backoff="0.2s", concurrency=3, concurrency_per_key=2)
def limited(ctx: Ctx, seconds: float = 0.0) -> int:
    """Run no more than three at once in the whole cluster, and two of one key."""
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
    """The job that follows a batch."""
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
