"""The app that `pgworkers bench` runs: jobs that do nothing but say when they began."""

from __future__ import annotations

import time

from pgworkers.app import App

app = App(name="bench", version="bench")
app.queue("bench", workers=1)


@app.task(queue="bench", retries=0)
def do_nothing(number: int) -> float:
    """The moment it began, on this machine's clock: whoever enqueued it on the same machine can tell the pickup."""
    return time.time()
