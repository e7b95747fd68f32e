"""The end of a limited job frees a slot without a notification, so the claimer checks a queue known to be dry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from support.idle_claimer import CLAIM_STATEMENTS, EmptyDatabase, claimer

from pgworkers.events import EventBus
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.master.connection import ConnectionDown
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings
from pgworkers.specs import TaskSpec

FOREVER = 3600.0


class WritableDatabase(EmptyDatabase):
    """It also writes whatever end it is sent."""

    statement_timeout = 5.0

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()  # claims
        self.answers.set()
        self.lost = 0  # this many results are not answered

    async def execute(
        self,
        query: Query[Any],
        *,
        raise_refusals: bool = False,
        raise_timeouts: bool = False,
    ) -> Any:
        if query.statement.name in ("finish", "retry"):
            for _ in range(5):  # it takes a while: others have their turn
                await asyncio.sleep(0)
            if self.lost:
                self.lost -= 1
                raise ConnectionDown("the session is gone")
            if query.statement.name == "finish":
                return query.read([(None, 1)])  # all are written
            return query.read([(nth, 1) for nth in range(1, len(query.params["ids"]) + 1)])
        if query.statement.name in CLAIM_STATEMENTS:
            self.asked.append(query)
            await self.answers.wait()
            return []
        return await super().execute(query)


class WiredClaimer:
    """A claimer and the ends, on one database, wired as `WiredClaimer` does it; its only queue is known to be dry."""

    def __init__(self) -> None:
        settings, events = (
            Settings(poll_interval=FOREVER, ageing_delay=0),
            EventBus(),
        )  # every look is a whole one
        self.connection = WritableDatabase()
        self.claims = claimer(self.connection, settings, events)
        self.ends = Finisher("host", cast("Any", self.connection), events, 100)
        self.ends.on_claims_possible = self.claims.wake_for_all_queues
        self._ended = 0

    async def looks(self) -> int:
        """How often it has looked, when it has done all that there was to do: only an hour would make it do more."""
        await self.ends.all_written.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return len(self.connection.asked)

    def ends_together(self, *limited: bool, again: bool = False) -> None:
        """Jobs have ended: one behind a limit for each True, one that is not for each False."""
        for behind in limited:
            self._ended += 1
            job = ClaimedJob(
                *(self._ended, 1, "q", "t", "{}", 1, 0, 3, 3, None, None, None, None, None, [], 0.0, False),
                is_limited=behind,
            )
            end: JobFinish | JobRetry = JobFinish(
                id=job.id, lease=1, claimed_at_us=0, state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED
            )
            if again:
                end = JobRetry(id=job.id, lease=1, claimed_at_us=0, verdict=Verdict.ERROR, delay_seconds=60.0)
            self.ends.add(HeldJob(job, TaskSpec("t", "q")), end)


Scene = Callable[[WiredClaimer], Coroutine[Any, Any, None]]
Scenario = Callable[[Scene], None]


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """The claimer's clock is stopped: however slow the machine is, nothing happens because of the time."""
    monkeypatch.setattr("pgworkers.master.claimer.monotonic", lambda: 1.0)
    monkeypatch.setattr("pgworkers.master.notifications.RECHECK_DELAYS_SECONDS", ())

    async def run(scene: Scene) -> None:
        host = WiredClaimer()
        tasks = [asyncio.ensure_future(host.claims.run()), asyncio.ensure_future(host.ends.run())]
        host.claims.on_reconnect()
        assert await host.looks() == 1, "it fell asleep, looked, and found nothing"
        host.claims.on_capacity("q")
        assert await host.looks() == 1, "the queue is dry"
        await scene(host)
        for task in tasks:
            assert not task.done()
            task.cancel()

    return lambda scene: asyncio.run(asyncio.wait_for(run(scene), 60))


@pytest.mark.parametrize("again", [False, True], ids=["finish", "retry"])
def test_the_end_of_a_job_behind_a_limit_makes_a_dry_queue_be_looked_at_and_no_other_does(
    scenario: Scenario, again: bool
) -> None:
    async def scene(host: WiredClaimer) -> None:
        host.ends_together(False, again=again)
        host.claims.on_capacity("q")  # its worker
        assert await host.looks() == 1, "nobody's place became free"
        host.ends_together(True, again=again)
        assert await host.looks() == 2, "what waits for its place would wait until the poll"
        host.claims.on_capacity("q")
        assert await host.looks() == 2, "nothing was found: it is dry again"

    scenario(scene)


def test_of_ends_that_are_written_together_one_behind_a_limit_is_enough(scenario: Scenario) -> None:
    async def scene(host: WiredClaimer) -> None:
        host.ends_together(False, False, False)
        assert await host.looks() == 1
        host.ends_together(False, True, False)
        assert await host.looks() == 2
        host.ends_together(True, True, True)
        assert await host.looks() == 3, "once for all of them"

    scenario(scene)


def test_an_unwritten_result_frees_no_slot(scenario: Scenario) -> None:
    async def scene(host: WiredClaimer) -> None:
        seen: list[int] = []

        async def wait_for_backoff() -> None:
            seen.append(len(host.connection.asked))

        host.connection.lost, host.connection.wait_for_backoff = 2, wait_for_backoff  # type: ignore[method-assign]
        host.ends_together(True)
        assert await host.looks() == 2
        assert seen == [1, 1], "its row still counts: a look would have been in vain"

    scenario(scene)


def test_an_end_that_is_written_while_a_claim_is_on_its_way_makes_it_look_once_more(
    scenario: Scenario,
) -> None:
    """That claim may have looked before the place was free, and would leave the queue dry behind it."""

    async def scene(host: WiredClaimer) -> None:
        for limited, looks in ((False, 2), (True, 4)):
            host.connection.answers.clear()
            host.claims.on_notification("q")
            before = await host.looks()
            host.ends_together(limited)
            assert await host.looks() == before, "one claim at a time"
            host.connection.answers.set()
            assert await host.looks() == looks

    scenario(scene)


def test_no_job_is_claimed_while_too_many_results_wait_and_claiming_resumes_when_they_are_written() -> None:
    async def story() -> None:
        host = WiredClaimer()
        host.ends = Finisher("host", cast("Any", host.connection), EventBus(), 2)
        told: list[bool] = []
        host.ends.on_claims_possible = lambda: told.append(host.ends.has_capacity())
        host.ends_together(*[False] * 4)
        assert host.ends.has_capacity()
        host.ends_together(False)
        assert not host.ends.has_capacity(), "more than two batches wait"
        running = asyncio.ensure_future(host.ends.run())
        await host.ends.all_written.wait()
        running.cancel()
        assert told == [True], "once, as soon as it is so"

    asyncio.run(story())


def test_ends_that_are_set_aside_count_as_ends_that_wait() -> None:
    """They have run and are not written: this host would repeat them all if it were lost."""
    host = WiredClaimer()
    host.ends = Finisher("host", cast("Any", host.connection), EventBus(), 2)
    host.ends_together(*[False] * 5)
    pending, aside = host.ends._pending, host.ends._writer.deferred
    ends = [pending.popleft() for _ in range(4)]
    pending.clear()
    for held, end in ends:
        aside.defer_refused(held, end)
    assert host.ends.has_capacity()
    host.ends._batch_size.record_failed(2, slow=False)
    assert host.ends.has_capacity(), "a few that are refused make batches small and hold up nothing"
    host.ends_together(False)
    assert not host.ends.has_capacity()


def test_a_postponed_result_wakes_the_claimer_when_it_is_written() -> None:
    async def story() -> None:
        host = WiredClaimer()
        host.ends = Finisher("host", cast("Any", host.connection), EventBus(), 2)
        told: list[bool] = []
        host.ends.on_claims_possible = lambda: told.append(host.ends.has_capacity())
        host.ends_together(*[False] * 5)
        pending, aside = host.ends._pending, host.ends._writer.deferred
        while pending:
            aside.defer_locked(*pending.popleft())
        assert not host.ends.has_capacity()
        running = asyncio.ensure_future(host.ends.run())
        async with asyncio.timeout(20):
            while not told:
                await asyncio.sleep(0.001)
        running.cancel()
        assert told == [True]

    asyncio.run(story())
