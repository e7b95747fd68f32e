"""Hooks in the worker: start hooks of one queue, `on_job_start` and middleware around sync and async handlers."""

from __future__ import annotations

from support.cluster import Cluster

HOOKS = """
import asyncio

TRACE = []

@app.on_worker_start(queue="ml")
def load(queue, slot):
    TRACE.append(f"load {queue}/{slot}")

@app.on_worker_start
def any_queue(slot: int):
    TRACE.append(f"any {slot}")

@app.on_job_start
def begin(ctx):
    TRACE.append(f"begin {ctx.task}")
    if ctx.meta.get("refused"):
        raise ValueError("refused by a hook")

@app.middleware
def outer(ctx, call_next):
    TRACE.append("outer in")
    try:
        return call_next()
    finally:
        TRACE.append("outer out")

@app.middleware
async def inner(ctx, call_next):
    TRACE.append("inner in")
    await asyncio.sleep(0)
    result = await call_next()
    TRACE.append("inner out")
    return [*result, "changed"]

@app.middleware
def second(ctx, call_next):
    TRACE.append("second in")
    return call_next()

def taken():
    found = list(TRACE)
    del TRACE[:]
    return found

@app.task
def plain(word: str = ""):
    TRACE.append("plain")
    return taken()

@app.task
async def asynchronous(ctx: Ctx):
    await asyncio.sleep(0)
    note(ctx, "START")
    TRACE.append("asynchronous")
    note(ctx, "END")
    return taken()

@app.task(timeout=0.5, retries=0)
def endless():
    while True:
        time.sleep(0.01)
"""


def test_hooks_run_around_sync_and_async_handlers(cluster: Cluster) -> None:
    cluster.declare(HOOKS)
    cluster.start(queues="default:1,ml:1")
    around = ["outer in", "second in", "inner in"]
    (job,) = cluster.enqueue("plain", args={"word": "x"})
    found = cluster.until(job, "succeeded")["result"]
    assert found == ["any 0", "begin plain", *around, "plain", "changed"]
    (job,) = cluster.enqueue("asynchronous")
    found = cluster.until(job, "succeeded")["result"]
    assert found == ["inner out", "outer out", "begin asynchronous", *around, "asynchronous", "changed"]
    (job,) = cluster.enqueue("plain", queue="ml")
    assert cluster.until(job, "succeeded")["result"][:2] == ["load ml/0", "any 0"]


def test_a_hook_that_raises_fails_the_attempt_and_is_in_its_traceback(cluster: Cluster) -> None:
    cluster.declare(HOOKS)
    cluster.start(queues="default:1,ml:1")
    (job,) = cluster.enqueue("plain", meta='{"refused": true}', max_attempts=1)
    assert cluster.until(job, "dead")["verdict"] == "error"
    (attempt,) = cluster.attempts(job)
    assert attempt["error"] == "ValueError: refused by a hook"
    assert "in begin" in attempt["traceback"]


def test_a_stop_reaches_a_handler_inside_of_middleware(cluster: Cluster) -> None:
    cluster.declare(HOOKS)
    cluster.start(queues="default:1,ml:1")
    (job,) = cluster.enqueue("endless")
    assert cluster.until(job, "dead")["verdict"] == "timeout"
    (attempt,) = cluster.attempts(job)
    assert "raise" in str(attempt["rungs"])
    assert "kill" not in str(attempt["rungs"])
    (job,) = cluster.enqueue("plain")
    assert "plain" in cluster.until(job, "succeeded")["result"], "the worker goes on"
