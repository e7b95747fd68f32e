"""Claims that take too long: jobs of unknown tasks are parked, in portions, and no queue waits for another one."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from support.idle_claimer import CLAIM_STATEMENTS, EmptyDatabase, claimer

from pgworkers.clock import monotonic
from pgworkers.events import ClaimTooSlow, Event, EventBus, JobsParked
from pgworkers.job.claim import (
    HIGHEST_PRIORITY,
    PARK_PORTION_ROWS,
    WHOLE_QUEUE,
    ParkedPortion,
    QueueCapacity,
    ScanRange,
)
from pgworkers.master.claim_policy import (
    NEWEST_IDS_SCANNED,
    RECHECK_SLOW_QUEUE_SECONDS,
    REST_PER_TIMEOUT_FACTOR,
    SlowQueues,
)
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

FIRST, LAST = WHOLE_QUEUE[0].first_id, WHOLE_QUEUE[0].last_id
WANTS = [QueueCapacity("a", 2), QueueCapacity("b", 2), QueueCapacity("c", 2)]


def test_a_crowded_queue_is_claimed_up_to_the_end_of_its_last_portion() -> None:
    crowds = SlowQueues(5.0)
    assert crowds.record_slow_claim(["a", "b"], 100.0)
    assert crowds.claimable(WANTS, 100.0) == WANTS[2:], "not before the first portion"
    assert crowds.next_to_park(101.0) == "a"
    assert crowds.record_parked("a", 2000, (3, 77), NEWEST_IDS_SCANNED + 900, 101.0)
    assert crowds.next_to_park(101.0) == "b", "they take turns"
    assert not crowds.record_parked("b", 0, (0, 5), 900, 101.0), "nothing to park"
    assert crowds.claimable(WANTS, 101.0) == WANTS
    bounded = [
        ScanRange(4, HIGHEST_PRIORITY, FIRST, LAST),
        ScanRange(3, 3, FIRST, 77),
        ScanRange(3, 3, 901, LAST),
    ]
    assert crowds.ranges(["a", "b", "c"]) == {"a": bounded}
    assert not crowds.record_parked("a", 10, None, 950, 102.0), "the end of the queue"
    assert not crowds.has_claim_due(102.0)
    assert crowds.ranges(["a"]) == {}


def test_a_queue_without_anything_to_park_is_not_looked_at_again_and_again() -> None:
    crowds = SlowQueues(5.0)
    crowds.record_slow_claim(["a"], 100.0)
    crowds.record_parked("a", 0, None, 0, 100.0)
    assert not crowds.record_slow_claim(["a"], 100.0 + RECHECK_SLOW_QUEUE_SECONDS - 1)
    assert not crowds.has_claim_due(102.0)
    assert crowds.record_slow_claim(["a"], 100.0 + RECHECK_SLOW_QUEUE_SECONDS)


def test_queues_that_time_out_for_another_reason_are_claimed_one_by_one_and_the_slow_one_rests() -> None:
    crowds = SlowQueues(5.0)
    crowds.record_timeout(["a", "b", "c"], 5.0, 100.0)
    assert crowds.claimable(WANTS, 100.0) == WANTS[:1]
    crowds.record_timeout(["a"], 5.0, 105.0)
    assert crowds.has_claim_due(105.0)
    assert [crowds.claimable(WANTS, 105.0), crowds.claimable(WANTS, 105.0)] == [WANTS[1:2], WANTS[2:]]
    assert crowds.claimable(WANTS, 105.0) == WANTS[1:], "the others together, while it rests"
    over = 105.0 + REST_PER_TIMEOUT_FACTOR * 5.0
    assert crowds.claimable(WANTS, over) == WANTS[:1], "alone first: it may still be slow"
    assert crowds.claimable(WANTS, over) == WANTS


def test_a_portion_that_timed_out_is_halved_and_its_queue_is_claimed_meanwhile() -> None:
    crowds = SlowQueues(5.0)
    crowds.record_slow_claim(["a"], 100.0)
    assert (crowds.next_to_park(100.0), crowds.portion("a")) == ("a", PARK_PORTION_ROWS)
    crowds.not_parked("a", 5.0, 105.0)
    assert crowds.claimable(WANTS, 105.0) == WANTS, "it does not rest"
    assert (crowds.next_to_park(109.0), crowds.has_claim_due(109.0)) == (None, False), (
        "claims have half of the time"
    )
    assert (crowds.next_to_park(110.0), crowds.portion("a")) == ("a", PARK_PORTION_ROWS // 2)
    crowds.close(["a", "b"])
    assert crowds.claimable(WANTS, 109.0) == WANTS[1:], "a claim of it timed out, too"
    assert crowds.record_parked("a", 900, (0, 77), 900, 111.0, 0.1)
    assert crowds.claimable(WANTS, 111.0) == WANTS
    assert crowds.portion("a") == PARK_PORTION_ROWS, "it was fast"


def test_a_queue_of_which_no_portion_is_small_enough_is_left_alone_and_claimed() -> None:
    crowds = SlowQueues(5.0)
    crowds.record_slow_claim(["a"], 0.0)
    now, tries = 0.0, 0
    while (queue := crowds.next_to_park(now)) is not None:
        crowds.not_parked(queue, 5.0, now + 5.0)
        now, tries = now + 10.0, tries + 1
    assert tries == 11
    assert crowds.claimable(WANTS, now) == WANTS
    assert not crowds.record_slow_claim(["a"], now)


class DatabaseWithManyParkedJobs(EmptyDatabase):
    """Queue j has more jobs of unknown tasks than an unbounded claim would ever get through; m has none."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.told: list[tuple[str, tuple[str, ...]]] = []

    async def execute(
        self,
        query: Query[Any],
        *,
        raise_refusals: bool = False,
        raise_timeouts: bool = False,
    ) -> Any:
        name, params = query.statement.name, query.params
        if name == "claim_park":
            self.told.append((name, (params["queue"],)))
            if params["queue"] != "j":
                return ParkedPortion({}, None)
            self.left -= 1
            return ParkedPortion({"unknown": 2000}, (0, 1000) if self.left else None, 50_000)
        if name in CLAIM_STATEMENTS:
            queues = tuple(params["queues"])
            self.told.append((name, queues))
            if "j" in queues and self.left and (name == "claim" or LAST in params["last_ids"][1:2]):
                assert raise_timeouts, "the database is not to blame"
                raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return await super().execute(query)


def test_a_claim_that_timed_out_goes_on_in_portions_and_the_log_names_the_task() -> None:
    heard: list[Event] = []

    async def story() -> DatabaseWithManyParkedJobs:
        connection = DatabaseWithManyParkedJobs(5)
        events = EventBus()
        events.subscribe(heard.append, ClaimTooSlow, JobsParked)
        claims = claimer(connection, Settings(poll_interval=60.0, ageing_delay=0), events, queues="jm")
        running = asyncio.ensure_future(claims.run())
        claims.wake_for_all_queues()
        while connection.left or not connection.told or connection.told[-1][0] != "claim":
            await asyncio.sleep(0.001)
        running.cancel()
        return connection

    told = asyncio.run(story()).told
    assert told[:3] == [("claim", ("j", "m")), ("claim_park", ("j",)), ("claim_park", ("m",))]
    claims = [(name, queues) for name, queues in told[3:] if name != "claim_park"]
    assert claims[0] == ("claim_ranges", ("j", "m")), (
        "both are claimed after the first portion, up to its end"
    )
    assert [name for name, _ in told].count("claim_park") == 6
    assert [type(event) for event in heard] == [ClaimTooSlow, JobsParked, JobsParked]
    assert heard[1:] == [
        JobsParked("j", "unknown", 2000, is_done=False),
        JobsParked("j", "unknown", 10_000, is_done=True),
    ]


def test_a_host_that_may_not_begin_jobs_rests_although_queues_are_to_be_claimed_one_by_one() -> None:
    """It kept every other task of its host from running, so that a drain never ended."""
    asked = 0

    def may_begin() -> bool:
        nonlocal asked
        asked += 1
        assert asked < 100, "it does not rest"
        return False

    async def story() -> None:
        claims = claimer(
            EmptyDatabase(), Settings(poll_interval=60.0, ageing_delay=0), EventBus(), queues="jm"
        )
        claims._may_start_jobs = may_begin
        claims._policy.slow_queues.record_timeout(("j", "m"), 5.0, monotonic())
        running = asyncio.ensure_future(claims.run())
        claims.wake_for_all_queues()
        await asyncio.sleep(0.05)
        assert not running.done()
        running.cancel()

    asyncio.run(story())
    assert asked > 0


class DatabaseWithSlowWrites(EmptyDatabase):
    """A statement that writes to more than 300 jobs of queue j takes too long, and its claims are slow but pass."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []

    async def execute(
        self,
        query: Query[Any],
        *,
        raise_refusals: bool = False,
        raise_timeouts: bool = False,
    ) -> Any:
        if query.statement.name == "claim_park":
            look = query.params["max_rows"]
            self.told.append(("park", look))
            if look > 300:
                raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
            return ParkedPortion({}, None)
        if query.statement.name in CLAIM_STATEMENTS and "j" in tuple(query.params["queues"]):
            self.told.append(("claim", 0))
        return await super().execute(query)


def test_a_park_that_times_out_closes_no_queue() -> None:
    async def story() -> DatabaseWithSlowWrites:
        connection = DatabaseWithSlowWrites()
        claims = claimer(connection, Settings(poll_interval=0.01, ageing_delay=0), EventBus(), queues="j")
        claims._policy.slow_queues.record_slow_claim(["j"], monotonic())
        running = asyncio.ensure_future(claims.run())
        claims.wake_for_all_queues()
        async with asyncio.timeout(20):
            while connection.told[-2:] != [("park", 250), ("claim", 0)]:
                await asyncio.sleep(0.001)
        running.cancel()
        return connection

    told = asyncio.run(story()).told
    assert [look for name, look in told if name == "park"] == [2000, 1000, 500, 250]
    assert told[1] == ("claim", 0), "it is claimed after the first timeout"
