"""The app that `pgworkers bench` runs. Its jobs only return the time at which they started."""

from __future__ import annotations

import time

from pgworkers.app import App

app = App(name="bench", version="bench")
app.queue("bench", workers=1)


@app.task(queue="bench", retries=0)
def do_nothing(number: int) -> float:
    """Return the time it started, by the clock of this machine, for the pickup time of a job enqueued on it."""
    return time.time()
