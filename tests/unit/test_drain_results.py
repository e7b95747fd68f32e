"""What a drain says of results that a slow database does not take in time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pgworkers.events import Event, EventBus, HostStateChanged
from pgworkers.master import drain
from pgworkers.master.drain import Drainer
from pgworkers.master.lifecycle import HostLifecycle, HostState
from pgworkers.settings import Settings


class SlowFinisher:
    """Each look at it finds fewer results."""

    def __init__(self, count: int, written_between: int) -> None:
        self.all_written = asyncio.Event()
        self.is_writing = True
        self._count = count
        self._written_between = written_between

    def __len__(self) -> int:
        self._count -= self._written_between
        return self._count


class Part:
    """Any other part of the host: it has nothing to do, and is done at once."""

    is_alive = False

    def __getattr__(self, name: str) -> Any:
        if name in ("resign", "release_lost", "write", "stop", "execute"):
            return self._done
        return lambda *_, **__: []

    async def _done(self, *_: Any, **__: Any) -> None: ...


@pytest.mark.parametrize("left", [515, 1])
def test_a_drain_reports_what_is_not_written_yet_and_at_the_end_what_is_left(
    monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    emitted: list[Event] = []
    settings = Settings(statement_timeout=0.05, drain_timeout=0.0)
    real_timeout = asyncio.timeout
    monkeypatch.setattr(drain.asyncio, "timeout", lambda delay: real_timeout(min(delay or 0.0, 0.05)))

    async def run() -> None:
        events = EventBus()
        events.subscribe(emitted.append)
        lifecycle = HostLifecycle(events)
        lifecycle.move_to(HostState.RUNNING, "up")
        part = cast("Any", Part())
        drainer = Drainer(
            host_id="h",
            settings=settings,
            lifecycle=lifecycle,
            dispatcher=part,
            supervisors=part,
            leadership=part,
            finisher=cast("Any", SlowFinisher(left + 3 * 100, 100)),
            lost_claims=part,
            statistics_writer=part,
            lease_keeper=part,
            remove_host_on=part,
            events=events,
        )
        await drainer.drain()

    asyncio.run(run())
    texts = [fact.why for fact in emitted if isinstance(fact, HostStateChanged)]
    results = "1 result is" if left == 1 else f"{left} results are"
    assert texts[-4:-1] == [
        f"{left + 200} results are not written yet",
        f"{left + 100} results are not written yet",
        f"{results} not written; their jobs will be rescued and run again",
    ]
