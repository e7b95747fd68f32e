"""The tasks of the soak, beside those of the zoo (copied next to this file). They endure any number of kills."""

from __future__ import annotations

import time

from zoo import app, note

from pgworkers import Ctx


@app.task(retries=5000, max_crashes=5000, backoff="0.2s")
def sturdy(ctx: Ctx, seconds: float = 0.0) -> int:
    note(ctx, "START")
    time.sleep(seconds)
    note(ctx, "END")
    return ctx.attempt


@app.task(retries=5000, max_crashes=5000, backoff="0.2s", exclusive=True)
def alone(ctx: Ctx, seconds: float = 0.0) -> int:
    """Must never run twice at the same time, whatever is cut off."""
    note(ctx, "START")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
    note(ctx, "END")
    return ctx.attempt


@app.schedule("* * * * * *", name="beat", missed="all")
@app.task(retries=5000, max_crashes=5000, backoff="0.2s")
def beat(ctx: Ctx) -> None:
    note(ctx, "START")
    note(ctx, "END")


@app.task(retries=5000, max_crashes=5000, backoff="0.2s")
def gather(ctx: Ctx) -> int:
    """What comes after a batch."""
    note(ctx, "START")
    note(ctx, "END")
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
