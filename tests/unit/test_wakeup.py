"""What wakes the claimer: a call of `set`, or the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pgworkers.master.claimer import Wakeup

FOREVER = 3600.0


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_wakeup_ends_the_wait_and_is_not_forgotten_before_it() -> None:
    async def story() -> None:
        wakeup, times = Wakeup(), 0

        async def wait() -> None:
            nonlocal times
            while True:
                await wakeup.wait(lambda: FOREVER)
                times += 1

        task = asyncio.create_task(wait())
        wakeup.set()
        await asyncio.sleep(0)
        assert times == 1, "set before it waited"
        wakeup.set()
        wakeup.set()
        assert times == 1, "the caller is not interrupted"
        for _ in range(10):
            await asyncio.sleep(0)
        assert times == 2
        task.cancel()

    run(story)


def test_a_wait_ends_when_the_time_is_over_and_not_before() -> None:
    async def story() -> None:
        wakeup, loop = Wakeup(), asyncio.get_running_loop()
        await wakeup.wait(lambda: 0.0)
        wakeup.set()
        await wakeup.wait(lambda: FOREVER)
        for before, pause in ((0.005, 0.03), (FOREVER, 0.01)):
            waits = asyncio.ensure_future(wakeup.wait(lambda before=before: before))  # type: ignore[misc]
            await asyncio.sleep(0)
            wakeup.set()
            await waits
            began = loop.time()
            await wakeup.wait(lambda pause=pause: pause)  # type: ignore[misc]
            assert loop.time() - began >= pause - 0.001

    run(story)
