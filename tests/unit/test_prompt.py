"""A future whose waiter goes on at once, and the bell that is made of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from pgworkers.master.claimer import Wakeup
from pgworkers.prompt import Prompt

FOREVER = 3600.0


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


class Waiter:
    """A task that waits, and what it did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.loop = asyncio.get_running_loop()
        self.prompt = Prompt(self.loop)
        self.task = self.loop.create_task(self._wait())

    async def _wait(self) -> None:
        try:
            await self.prompt
        except asyncio.CancelledError:
            self.done.append("cancelled")
            raise
        self.done.append("went on")


def called_back(act: Callable[[], None]) -> asyncio.Future[None]:
    """Act in a callback of the loop, as a socket that can be read does; no task is running then."""
    over = asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            act()
        except BaseException as error:
            over.set_exception(error)
        else:
            over.set_result(None)

    asyncio.get_running_loop().call_soon(call)
    return over


def test_the_waiter_goes_on_within_the_callback() -> None:
    async def story() -> None:
        waiter = Waiter()
        await asyncio.sleep(0)

        def act() -> None:
            waiter.prompt.set()
            assert waiter.done == ["went on"]
            waiter.prompt.set()  # once is enough

        await called_back(act)
        await waiter.task
        assert waiter.done == ["went on"]

    run(story)


def test_set_by_another_task_it_goes_on_in_the_next_turn() -> None:
    async def story() -> None:
        waiter = Waiter()
        await asyncio.sleep(0)
        waiter.prompt.set()
        assert waiter.done == []
        await waiter.task
        assert waiter.done == ["went on"]

    run(story)


def test_set_before_anybody_waits_nobody_waits() -> None:
    async def story() -> None:
        waiter = Waiter()
        waiter.prompt.set()
        await waiter.task
        assert waiter.done == ["went on"]

    run(story)


def test_a_waiter_that_is_cancelled_does_not_go_on() -> None:
    async def story() -> None:
        waiter = Waiter()
        await asyncio.sleep(0)
        waiter.task.cancel()
        await called_back(waiter.prompt.set)  # too late
        with pytest.raises(asyncio.CancelledError):
            await waiter.task
        assert waiter.done == ["cancelled"]

    run(story)


def test_a_time_limit_ends_the_wait() -> None:
    async def story() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Prompt(asyncio.get_running_loop())

    run(story)


def test_the_waiter_keeps_its_own_context() -> None:
    whose = ContextVar("whose", default="nobody's")
    seen: list[str] = []

    async def story() -> None:
        prompt = Prompt(asyncio.get_running_loop())

        async def wait() -> None:
            whose.set("the waiter's")
            await prompt
            seen.append(whose.get())

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        whose.set("the caller's")
        await called_back(prompt.set)
        await task
        assert seen == ["the waiter's"]

    run(story)


def test_a_bell_wakes_whoever_waits_and_is_not_forgotten_by_whoever_comes_later() -> None:
    async def story() -> None:
        bell, times = Wakeup(), 0

        async def wait() -> None:
            nonlocal times
            while True:
                await bell.wait(lambda: FOREVER)
                times += 1

        task = asyncio.create_task(wait())
        bell.set()
        await asyncio.sleep(0)
        assert times == 1, "rung before it waited"

        bell.mark()
        for _ in range(3):
            await asyncio.sleep(0)
        assert times == 1, "touched only"

        def now() -> None:
            bell.set_now()
            assert times == 2
            bell.set_now()
            assert times == 2, "nobody rang again"
            bell.set()
            bell.set()
            assert times == 2, "whoever rings is in the middle of something"

        await called_back(now)
        for _ in range(3):
            await asyncio.sleep(0)
        assert times == 3
        task.cancel()

    run(story)


def test_a_bell_rings_by_itself_when_the_time_is_over_and_not_before() -> None:
    async def story() -> None:
        bell, loop = Wakeup(), asyncio.get_running_loop()
        await bell.wait(lambda: 0.0)
        bell.set()
        await bell.wait(lambda: FOREVER)
        for before, pause in (
            (0.005, 0.03),
            (FOREVER, 0.01),
        ):  # the timer of the one before is too early, or too late
            waits = asyncio.ensure_future(bell.wait(lambda before=before: before))  # type: ignore[misc]
            await asyncio.sleep(0)
            bell.set()
            await waits
            began = loop.time()
            await bell.wait(lambda pause=pause: pause)  # type: ignore[misc]
            assert loop.time() - began >= pause - 0.001

    run(story)
