"""Signals that a master receives when thousands of its children end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pgworkers.master import signals

_HEARD = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP),
)


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _HEARD}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers_restored")
def test_sigterm_is_handled_after_more_child_deaths_than_the_loop_can_buffer() -> None:
    heard: list[str] = []

    async def main() -> None:
        lifecycle: Any = SimpleNamespace(is_leaving=False, leave=heard.append)
        signals.install_handlers(
            lifecycle,
            resize=lambda by: None,
            log_state=lambda: None,
            log_stacks=lambda: None,
            reload=lambda: None,
        )
        for _ in range(5000):  # while the loop is blocked
            os.kill(os.getpid(), signal.SIGCHLD)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            while not heard:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert heard == ["SIGTERM"]


@pytest.mark.usefixtures("handlers_restored")
def test_an_inherited_ignored_sigchld_is_not_kept() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signals.ignore_until_loop_runs()
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
