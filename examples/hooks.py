"""Hooks around jobs. `pgworkers -c examples/hooks.py run`, then `pgworkers -c examples/hooks.py enqueue shout text=hi`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import Counter

from pgworkers import App, Ctx, JobEnd

log = logging.getLogger("hooks")
app = App()
app.queue("default", workers=2)

LETTERS = Counter("example_letters_total", "Letters that were shouted.")
cache: dict[str, str] = {}


@app.on_worker_start
def warm_up(queue: str, slot: int) -> None:
    """Once in each worker, after its fork."""
    cache["place"] = f"{queue}/{slot}"


@app.middleware
def timing(ctx: Ctx, call_next: Callable[[], Any]) -> Any:
    """Around each handler, in its worker."""
    started = time.monotonic()
    try:
        return call_next()
    finally:
        log.info("%s took %.3f s", ctx.task, time.monotonic() - started)


@app.on_job_end(verdicts="failed")
def alert(end: JobEnd) -> None:
    """In the reporter, also if the worker was killed."""
    log.warning("%s #%d: %s: %s", end.task, end.job, end.verdict, end.error)


@app.task(retries=0, timeout="5s")
def shout(text: str) -> str:
    if not text:
        raise ValueError("nothing to shout")
    LETTERS.inc(len(text))
    return f"{text.upper()} from {cache['place']}"
