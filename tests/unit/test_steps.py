"""Operations that are written once: both runners answer steps, raise errors where the step was yielded, and clean up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pgworkers.postgres.steps import AsyncRunner, BlockingRunner, Steps


def answer(step: Any) -> Any:
    if isinstance(step, BaseException):
        raise step
    return step * 2


class Blocking(BlockingRunner):
    def perform(self, step: Any) -> Any:
        return answer(step)


class InLoop(AsyncRunner):
    async def perform(self, step: Any) -> Any:
        await asyncio.sleep(0)
        return answer(step)


class Both:
    """Runs an operation with one of the runners."""

    def __init__(self, kind: str) -> None:
        self.is_async = kind == "async"

    def run(self, steps: Steps[Any]) -> Any:
        return asyncio.run(InLoop().run(steps)) if self.is_async else Blocking().run(steps)


@pytest.fixture(params=["blocking", "async"])
def runner(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


def test_answers_come_back_and_the_operation_returns_a_result(runner: Both) -> None:
    def inner() -> Steps[int]:
        found: int = yield 10
        return found

    def steps() -> Steps[list[int]]:
        first: int = yield 1
        second = yield from inner()
        return [first, second]

    assert runner.run(steps()) == [2, 20]


def test_an_operation_without_steps_has_a_result(runner: Both) -> None:
    def steps() -> Steps[str]:
        return "none"
        yield

    assert runner.run(steps()) == "none"


def test_an_error_is_raised_where_the_step_was_yielded(runner: Both) -> None:
    def steps() -> Steps[int]:
        with pytest.raises(ValueError, match="refused"):
            yield ValueError("refused")
        again: int = yield 4
        return again

    assert runner.run(steps()) == 8


@pytest.mark.parametrize("error", [ValueError("refused"), KeyboardInterrupt()])
def test_an_error_that_is_not_caught_reaches_the_caller_after_the_clean_up(
    runner: Both, error: BaseException
) -> None:
    done: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield error
        finally:
            done.append("cleaned up")

    with pytest.raises(type(error)) as caught:
        runner.run(steps())
    assert caught.value is error
    assert done == ["cleaned up"]


def test_an_error_of_the_operation_itself_reaches_the_caller(runner: Both) -> None:
    def steps() -> Steps[None]:
        yield 1
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        runner.run(steps())


def test_a_cancelled_task_cancels_its_operation() -> None:
    done: list[str] = []

    class Waiting(AsyncRunner):
        async def perform(self, step: Any) -> Any:
            await asyncio.sleep(60)

    def steps() -> Steps[None]:
        try:
            yield 1
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.create_task(Waiting().run(steps()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert done == ["cancelled"]
