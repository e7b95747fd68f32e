"""Read by mypy --strict and pyright, never run: everything here must be accepted, with these very types."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

import psycopg

from pgworkers import App, Ctx, ExponentialBackoff, Job, Task

app = App()
app.queue("reports", workers=4, memory="2GB", nice=5, threads=1, max_jobs=500, preload=["numpy"])


@app.task(queue="reports", timeout="10m", memory="1GB", retries=5, priority=10)
def render(ctx: Ctx, report_id: int, *, fmt: str = "pdf") -> dict[str, str]:
    first: int = ctx.checkpoint.get("page", 0)
    for page in ctx.track(range(first, 500)):
        assert_type(page, int)
        ctx.checkpoint["page"] = page
    ctx.enqueue(nothing.prepare(), plain.using(delay="5m").prepare(7))
    assert_type(ctx.extend("5m"), float | None)
    return {"fmt": fmt}


@app.task
def plain(x: int, *rest: float, flag: bool = False, **more: str) -> float:
    return x + sum(rest)


@app.task
def nothing() -> None: ...


@app.task
def only_ctx(ctx: Ctx) -> str:
    return ctx.task


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task(backoff=["1s", "10s"])
async def fetch_ctx(ctx: Ctx, url: str, /) -> int:
    return len(url)


@app.task
def loose(value: object, other: int = 0) -> str:
    return str(value)


@app.task(backoff=ExponentialBackoff(base="1s"))
def keyword_only(*, name: str) -> str:
    return name


@app.task(backoff=lambda attempt: attempt * 2.0, name="other", exclusive=True, result_limit="1MB")
def positional(a: int, b: str = "", /) -> tuple[int, str]:
    return a, b


# The plain call is the function itself.
assert_type(render(None, 7), dict[str, str])
assert_type(render(Ctx.for_test(), 7, fmt="png"), dict[str, str])
assert_type(plain(1, 2.0, flag=True, k="v"), float)
bytes_later = assert_type(fetch("x"), Coroutine[Any, Any, bytes])
int_later = assert_type(fetch_ctx(None, "x"), Coroutine[Any, Any, int])
assert_type(only_ctx(None), str)

# enqueue takes the parameters without the context; the job results in what the handler returns.
assert_type(render.enqueue(7, fmt="png"), Job[dict[str, str]])
assert_type(render.enqueue(report_id=7), Job[dict[str, str]])
assert_type(render.enqueue(7).result(timeout=60), dict[str, str])
assert_type(plain.enqueue(1, 2.0, 3.0, flag=True, more="v"), Job[float])
assert_type(nothing.enqueue(), Job[None])
assert_type(only_ctx.enqueue(), Job[str])
assert_type(fetch.enqueue("x"), Job[bytes])
assert_type(fetch_ctx.enqueue("x"), Job[int])
assert_type(keyword_only.enqueue(name="x"), Job[str])
assert_type(positional.enqueue(1, "x").result("1m"), tuple[int, str])
assert_type(loose.enqueue(object(), other=3), Job[str])
assert_type(
    render.using(
        delay="5m", priority=20, unique="report:7", queue="api", expires="1h", meta={"why": "x"}
    ).enqueue(7),
    Job[dict[str, str]],
)


def inside(conn: psycopg.Connection[tuple[int]]) -> None:
    with conn.transaction():
        render.using(conn=conn).enqueue(7)
    assert_type(app.enqueue_many((render.prepare(i) for i in range(3)), conn=conn, progress=print), int)
    app.enqueue_many([render.prepare(1), plain.prepare(2)])


async def waiting() -> None:
    job = await fetch.aenqueue("x")
    assert_type(job, Job[bytes])
    assert_type(await job.aresult(), bytes)
    assert_type(await render.using(on_conflict="replace", unique="x").aenqueue(1), Job[dict[str, str]])
    once = render.using(idempotency_key="mail:81", idempotency_window="2h")
    assert_type(await once.aenqueue(1), Job[dict[str, str]])
    await app.aenqueue_many(fetch.prepare(str(i)) for i in range(3))


def takes_a_task(task: Task[[int], float]) -> Job[float]:
    return task.enqueue(1)


@app.task
def one(x: int) -> float:
    return x


takes_a_task(one)


@app.on_worker_start
def load_model() -> None: ...
