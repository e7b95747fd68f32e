"""Declaring hooks: what is refused, with which words, and how middleware is nested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pgworkers import App, Ctx, UsageError
from pgworkers.hooks import run_handler


def made() -> App:
    app = App()
    app.queue("default")
    return app


def run(awaitable: Awaitable[Any]) -> Any:
    async def whole() -> Any:
        return await awaitable

    return asyncio.run(whole())


def call(app: App, handler: Callable[[], Any]) -> Any:
    return run_handler(app.hooks, Ctx.for_test(), handler, run)


def test_a_start_hook_takes_nothing_or_its_place() -> None:
    app = made()
    got: list[object] = []

    @app.on_worker_start
    def nothing() -> None:
        got.append("nothing")

    @app.on_worker_start(queue="default")
    def place(slot: int, queue: str, *, cache: str = "warm") -> None:
        got.append((queue, slot, cache))

    for hook in app.hooks.start_hooks_of("default"):
        hook.call("default", 3)
    assert got == ["nothing", ("default", 3, "warm")]
    assert len(app.hooks.start_hooks_of("other")) == 1
    with pytest.raises(
        UsageError, match=r"on_worker_start: .*wrong has a parameter 'size'; a hook takes nothing"
    ):

        @app.on_worker_start
        def wrong(size: int) -> None: ...


def test_a_hook_of_an_unknown_queue_is_refused_when_the_app_is_described() -> None:
    app = made()

    @app.on_worker_stop(queue="defualt")
    def late() -> None: ...

    with pytest.raises(UsageError, match=r"late is for queue 'defualt', which is not declared .*never run"):
        app.describe()


def test_hooks_of_a_wrong_shape_are_refused() -> None:
    app = made()
    with pytest.raises(UsageError, match=r"middleware: .*<lambda> cannot be called as"):
        app.middleware(lambda ctx: None)
    with pytest.raises(UsageError, match=r"on_job_start: .*<lambda> cannot be called as"):
        app.on_job_start(lambda: None)
    with pytest.raises(UsageError, match=r"on_job_end: .*<lambda> cannot be called as"):
        app.on_job_end(lambda: None)
    with pytest.raises(UsageError, match=r"on_reporter_start: .*<lambda> cannot be called as"):
        app.on_reporter_start(lambda client: None)


def test_verdicts_are_checked() -> None:
    app = made()
    with pytest.raises(
        UsageError, match=r"'tiemout' is not a verdict; use \"failed\" or some of succeeded, error"
    ):
        app.on_job_end(verdicts=("tiemout",))(print)
    with pytest.raises(UsageError, match="verdicts is empty"):
        app.on_job_end(verdicts=())(print)
    assert app.describe().reported_verdicts == ()
    app.on_job_end(verdicts="crash")(print)
    assert app.describe().reported_verdicts == ("crash",)
    app.on_job_end(verdicts=["failed"])(print)
    assert "timeout" in app.describe().reported_verdicts
    assert "succeeded" not in app.describe().reported_verdicts
    app.on_job_end(print)
    assert "succeeded" in app.describe().reported_verdicts


def test_without_middleware_a_handler_is_called_as_it_is() -> None:
    async def handler() -> int:
        return 7

    assert call(made(), lambda: 7) == 7
    assert call(made(), handler) == 7


def test_an_async_start_hook_is_awaited() -> None:
    app = made()
    seen: list[str] = []

    @app.on_job_start
    async def begin(ctx: Ctx) -> None:
        await asyncio.sleep(0)
        seen.append(ctx.task)

    assert call(app, lambda: 1) == 1
    assert seen == [Ctx.for_test().task]


def test_middleware_may_answer_without_the_handler() -> None:
    app = made()

    @app.middleware
    def cached(ctx: Ctx, call_next: Callable[[], Any]) -> Any:
        return "cached"

    def never() -> None:
        raise AssertionError

    assert call(app, never) == "cached"


def test_a_box_runs_hooks_as_a_worker_does() -> None:
    app = made()
    seen: list[str] = []

    @app.on_worker_start(queue="default")
    def load(queue: str, slot: int) -> None:
        seen.append(f"load {queue}/{slot}")

    @app.middleware
    def outer(ctx: Ctx, call_next: Callable[[], Any]) -> Any:
        seen.append(f"outer {ctx.task}")
        return call_next()

    @app.middleware
    async def inner(ctx: Ctx, call_next: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(0)
        return [await call_next()]

    @app.task
    def plain(number: int) -> list[int]:
        return number  # type: ignore[return-value]

    @app.task
    async def coroutine(number: int) -> list[int]:
        await asyncio.sleep(0)
        return number  # type: ignore[return-value]

    with app.testing(run_hooks=True) as box:
        jobs = [plain.enqueue(1), coroutine.enqueue(2)]
        box.run()
        assert [job.result() for job in jobs] == [[1], [2]]
    assert seen == ["load default/0", "outer plain", "outer coroutine"]

    async def both() -> None:
        async with app.testing() as box:
            jobs = [await plain.aenqueue(3), await coroutine.aenqueue(4)]
            await box.arun()
            assert [await job.aresult() for job in jobs] == [[3], [4]]

    asyncio.run(both())
