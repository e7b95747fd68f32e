"""When a host asks to be notified, and where it claims: the pure deciders of the claimer."""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import Any, cast

import pytest
from support.idle_claimer import CLAIM_STATEMENTS, DispatcherWithRoom, EmptyDatabase, claimer

from pgworkers.events import EventBus
from pgworkers.job.claim import HIGHEST_PRIORITY, LOWEST_PRIORITY, WHOLE_QUEUE, QueueCapacity, ScanRange
from pgworkers.job.model import ClaimedJob
from pgworkers.master.claim_policy import (
    MAX_PRIORITIES_REMEMBERED,
    MIN_STEP_IDS,
    MISSED_NOTIFICATION_SECONDS,
    PAUSE_PER_LATE_SCAN_FACTOR,
    PAUSE_PER_SCAN_FACTOR,
    ClaimPositions,
    ScanKind,
)
from pgworkers.master.claimer import DISPATCH_CHUNK_JOBS, DISPATCH_SLICE_SECONDS, Claimer
from pgworkers.master.notifications import (
    AWAKE_CLAIM_SECONDS,
    AWAKE_QUIET_SECONDS,
    MAX_HOSTS_SHARING_CLAIMS,
    MAX_NOTIFICATIONS_PER_WINDOW,
    RECHECK_DELAYS_SECONDS,
    SleepPolicy,
)
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

LAST = WHOLE_QUEUE[0].last_id


def job(job_id: int, priority: int = 0, queue: str = "q") -> ClaimedJob:
    return ClaimedJob(
        job_id, 1, queue, "t", "{}", 1, 0, 3, 3, None, None, None, None, None, [], 0.0, False, priority
    )


def test_a_host_sleeps_until_much_comes_in_and_again_after_a_while_without() -> None:
    policy = SleepPolicy()
    assert policy.announcement_due(["q", "r"]) == {"q", "r"}
    policy.record_announcement(frozenset({"q", "r"}), 0.0)
    policy.record_claim({"q": 1, "r": 1}, {}, 0.5, 0.5)
    assert policy.announcement_due(["q", "r"]) is None
    for n in range(MAX_NOTIFICATIONS_PER_WINDOW + 1):
        assert policy.announcement_due(["q", "r"]) is None, "a few notifications change nothing"
        policy.record_notification("q", 1.0 + n / 1000)
    assert policy.announcement_due(["q", "r"]) == {"r"}, "nobody is notified of a busy queue"
    policy.record_announcement(frozenset({"r"}), 1.1)
    assert policy.seconds_until_claim(1.2, 1.0, True) == AWAKE_CLAIM_SECONDS, (
        "it looks by itself, if it has room"
    )
    assert policy.seconds_until_claim(1.2, 1.0, False) == 1.0
    policy.record_claim({"q": 1, "r": 1}, {"q": 1}, 2.0, 10.0)
    policy.record_claim({"q": 1, "r": 1}, {}, 2.0 + AWAKE_QUIET_SECONDS / 2, 10.0)
    policy.record_claim({"r": 1}, {}, 9.0, 10.0)  # no room for q: who would be notified?
    assert policy.announcement_due(["q", "r"]) is None
    policy.record_claim({"q": 1, "r": 1}, {}, 9.0 + 2 * AWAKE_QUIET_SECONDS, 10.5)
    assert policy.announcement_due(["q", "r"]) == {"q", "r"}
    assert policy.seconds_until_claim(9.3, 1.0, True) == 1.0


def test_notifications_that_come_slowly_keep_it_asleep() -> None:
    policy = SleepPolicy()
    policy.record_announcement(frozenset({"q"}), 0.0)
    for n in range(10 * MAX_NOTIFICATIONS_PER_WINDOW):
        policy.record_notification("q", n * 0.01)
    assert policy.announcement_due(["q"]) is None


def test_a_host_that_falls_asleep_claims_again_at_growing_intervals() -> None:
    policy = SleepPolicy()
    policy.record_announcement(frozenset({"q"}), 10.0)
    now = 10.0
    for look in RECHECK_DELAYS_SECONDS:
        assert abs(policy.seconds_until_claim(now, 1.0, True) - (10.0 + look - now)) < 1e-9
        now = 10.0 + look
        policy.record_claim({"q": 1}, {}, now, now + 1.0)
    assert policy.seconds_until_claim(now, 1.0, True) == 1.0, "then the poll is enough"
    policy.record_announcement(frozenset(), 11.0)
    assert policy.seconds_until_claim(11.0, 1.0, True) == 1.0, "nothing fell asleep"


def test_a_lost_idle_row_is_written_again() -> None:
    policy = SleepPolicy()
    policy.record_announcement(frozenset({"q"}), 0.0)
    policy.record_claim_sent()
    policy.record_claim({"q": 1}, {}, 5.0, 9.0)
    policy.forget_announcement()
    assert not policy.is_known_empty("q", 5.0)
    assert policy.announcement_due(["q"]) == {"q"}
    policy.record_announcement(frozenset({"q"}), 6.0)
    assert 0 < policy.seconds_until_claim(6.0, 1.0, True) <= RECHECK_DELAYS_SECONDS[0] + 1e-9
    assert [policy.seconds_until_claim(7.0, 1.0, False) for _ in range(4)] == [0.0, 0.0, 0.0, 1.0], (
        "each look once, room or not"
    )


def asleep(*queues: str) -> SleepPolicy:
    """Of a host that has slept for long, and has just sent a claim."""
    policy = SleepPolicy()
    policy.record_announcement(frozenset(queues), 0.0)
    policy.record_claim({}, {}, 1.0, 1.0)
    policy.record_claim_sent()
    return policy


def test_a_queue_that_gave_fewer_jobs_than_asked_is_dry_until_notified() -> None:
    policy = asleep("q", "r", "s")
    policy.record_claim({"q": 2, "r": 2}, {"q": 1, "r": 2}, 10.0, 12.0)
    assert [policy.is_known_empty(queue, 10.1) for queue in "qrs"] == [True, False, False], (
        "the others may have more"
    )
    assert policy.seconds_until_claim(10.5, 5.0, True) == 1.5, "and for no longer than this"
    assert not policy.is_known_empty("q", 12.0)
    assert [policy.seconds_until_claim(12.0, 5.0, True), policy.seconds_until_claim(12.0, 5.0, True)] == [
        0.0,
        5.0,
    ], "it is looked at once"
    policy.record_claim_sent()
    policy.record_claim({"q": 1}, {}, 20.0, 22.0)
    policy.record_notification("r", 20.1)
    assert policy.is_known_empty("q", 20.1)
    policy.record_notification("q", 20.2)
    assert not policy.is_known_empty("q", 20.2)


def test_a_notification_during_a_claim_triggers_another_claim() -> None:
    policy = asleep("q", "r")
    policy.record_notification("q", 1.5)
    policy.record_claim({"q": 1, "r": 1}, {}, 2.0, 4.0)
    assert (policy.is_known_empty("q", 2.0), policy.is_known_empty("r", 2.0)) == (False, True)
    policy.record_claim_sent()
    policy.assume_any_ready()
    policy.record_claim({"q": 1, "r": 1}, {}, 3.0, 5.0)
    assert (policy.is_known_empty("q", 3.0), policy.is_known_empty("r", 3.0)) == (False, False), (
        "anything may have changed"
    )
    policy.record_claim_sent()
    policy.record_claim({"q": 1, "r": 1}, {}, 4.0, 6.0)
    assert policy.is_known_empty("q", 4.0)
    policy.assume_any_ready()
    assert not policy.is_known_empty("q", 4.0)


def test_a_queue_without_notifications_is_never_dry() -> None:
    policy = asleep("r")
    policy.record_claim({"q": 1}, {}, 2.0, 4.0)
    assert not policy.is_known_empty("q", 2.0)


def test_while_it_falls_asleep_nothing_stays_dry() -> None:
    policy = asleep("q")
    policy.record_claim({"q": 1}, {}, 2.0, 4.0)
    policy.record_announcement(frozenset({"q", "r"}), 2.1)
    assert not policy.is_known_empty("q", 2.1)
    for look in RECHECK_DELAYS_SECONDS:
        policy.record_claim_sent()
        policy.record_claim({"q": 1}, {}, 2.1, 4.1)
        assert policy.is_known_empty("q", 2.1)
        assert policy.seconds_until_claim(2.1 + look, 1.0, True) == 0.0
        assert not policy.is_known_empty("q", 2.1 + look)


def test_hosts_that_share_a_queue_share_the_looks() -> None:
    for hosts, share in ((1, 1), (4, 4), (1000, MAX_HOSTS_SHARING_CLAIMS)):
        policy = asleep("q")
        policy.host_count = hosts
        for _ in range(MAX_NOTIFICATIONS_PER_WINDOW + 1):
            policy.record_notification("q", 10.0)
        assert policy.seconds_until_claim(10.0, 5.0, True) == AWAKE_CLAIM_SECONDS * share
        policy.record_claim({"q": 1}, {}, 10.0 + 0.9 * AWAKE_QUIET_SECONDS * share, 20.0)
        assert policy.is_awake("q")
        policy.record_claim({"q": 1}, {}, 10.0 + 1.1 * AWAKE_QUIET_SECONDS * share, 20.0)
        assert not policy.is_awake("q")


def test_a_full_queue_is_not_asked_about_until_a_claim_finds_less_than_there_was_room_for() -> None:
    policy = asleep("q", "r")
    policy.record_full({"q"})
    assert policy.announcement_due(["q", "r"]) is None, "the database knows"
    policy.record_claim_sent()
    policy.record_claim({"q": 2}, {"q": 2}, 2.0, 4.0)
    assert policy.announcement_due(["q", "r"]) is None
    assert not policy.is_known_empty("q", 2.0)
    policy.record_claim_sent()
    policy.record_claim({"q": 2}, {"q": 1}, 3.0, 5.0)
    assert policy.announcement_due(["q", "r"]) == {"q", "r"}
    assert not policy.is_known_empty("q", 3.0), "no host is notified of it yet"


def test_a_host_that_falls_asleep_next_to_others_does_not_claim_again() -> None:
    policy = SleepPolicy()
    policy.record_announcement(frozenset({"q"}), 1.0, frozenset())
    assert policy.seconds_until_claim(1.0, 5.0, True) == 5.0
    policy.record_announcement(frozenset({"q", "r"}), 1.0, frozenset({"r"}))
    assert 0 < policy.seconds_until_claim(1.0, 5.0, True) <= RECHECK_DELAYS_SECONDS[0]


def test_a_queue_without_a_notification_is_polled() -> None:
    policy = asleep("q", "r")
    for noticed in (True, False):  # that the time is over, before it looks
        policy.record_claim({"q": 1, "r": 1}, {}, 2.0, 4.0)
        if noticed:
            assert policy.seconds_until_claim(4.0, 9.0, True) == 0.0
        policy.record_notification("r", 4.0)
        policy.record_claim_sent()
        policy.record_claim({"q": 1, "r": 1}, {"q": 1, "r": 1}, 4.0, 6.0)
        assert (policy.was_polled("q"), policy.was_polled("r")) == (True, False)
        policy.record_claim({"q": 1}, {}, 4.0, 6.0)
        assert not policy.was_polled("q"), "that was the claim before"
        policy.assume_any_ready()
        policy.record_claim_sent()


class SharedDatabase(EmptyDatabase):
    """A database that other hosts share. `sent` are the statements, `claims` what the next claims find."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.found: list[list[ClaimedJob]] = []

    async def execute(self, query: Query[Any], **how: Any) -> Any:
        is_claim = query.statement.name in CLAIM_STATEMENTS
        self.sent.append("claim" if is_claim else query.statement.name)
        if is_claim and self.found:
            return self.found.pop(0)
        return await super().execute(query, **how)


class LimitedDispatcher(DispatcherWithRoom):
    """Buffers with room for as many jobs as `room` says, on a host that shares its queues with others."""

    def __init__(self, queues: str, room: int) -> None:
        super().__init__(queues)
        self.cluster.other_hosts_sharing = 3
        self.room = room

    def capacity(self) -> list[QueueCapacity]:
        return [QueueCapacity(queue, self.room) for queue in self.buffers] if self.room else []

    def accept(self, claimed: list[ClaimedJob]) -> None:
        self.room -= len(claimed)


def chosen_host(
    room: int, hints: list[bool], found: list[list[ClaimedJob]], *, sharing: int = 3, rounds: int = 1
) -> list[str]:
    """The statements of a sleeping host that is chosen for jobs: True stands for one job, False for any number."""

    async def story() -> list[str]:
        connection, dispatcher = SharedDatabase(), LimitedDispatcher("q", 1)
        dispatcher.cluster.other_hosts_sharing = sharing
        settings = Settings(poll_interval=3600.0, ageing_delay=0)
        claims = Claimer(
            "host", cast("Any", connection), cast("Any", dispatcher), EventBus(), settings, lambda: True
        )
        running = asyncio.ensure_future(claims.run())
        claims.on_reconnect()
        await asyncio.sleep(2 * RECHECK_DELAYS_SECONDS[-1])  # it has fallen asleep
        connection.sent.clear()
        connection.found, dispatcher.room = found, room
        for _ in range(rounds):
            for is_one_job in hints:
                claims.on_notification_for_this_host("q", is_one_job=is_one_job)
            for _ in range(10):
                await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
        return connection.sent

    return asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize(
    ("room", "hints", "found", "sent"),
    [
        (0, [True], [], ["host_pass_on"]),
        (1, [True], [[job(1)]], ["claim"]),
        (1, [True, True], [[job(1)]], ["claim", "host_pass_on"]),
        (1, [False], [[job(1)]], ["claim", "host_pass_on"]),
        (2, [True, True, True], [[job(1)]], ["claim"]),
        (2, [False], [[job(1)]], ["claim"]),
        (1, [True], [], ["claim"]),
    ],
    ids=[
        "no room",
        "room for one",
        "room for one of two",
        "room for one of many",
        "others were faster",
        "all of many",
        "nothing there",
    ],
)
def test_a_chosen_host_passes_on_what_it_has_no_room_for(
    room: int, hints: list[bool], found: list[list[ClaimedJob]], sent: list[str]
) -> None:
    assert chosen_host(room, hints, found) == sent


def test_a_full_host_without_others_passes_nothing_on() -> None:
    assert chosen_host(0, [True], [], sharing=0) == []


def test_however_many_hints_come_a_full_host_sends_few_statements() -> None:
    """Any login can send them."""
    assert chosen_host(0, [True, False] * 50, [], rounds=20).count("host_pass_on") <= 2


def missed(waited: float, sharing: int) -> list[str]:
    """The statements after the poll of a sleeping host found a job that had waited for `waited` seconds."""

    async def story() -> list[str]:
        connection, dispatcher = SharedDatabase(), LimitedDispatcher("q", 2)
        dispatcher.cluster.other_hosts_sharing = sharing
        settings = Settings(poll_interval=3 * RECHECK_DELAYS_SECONDS[-1], ageing_delay=0)
        claims = Claimer(
            "host", cast("Any", connection), cast("Any", dispatcher), EventBus(), settings, lambda: True
        )
        running = asyncio.ensure_future(claims.run())
        claims.on_reconnect()
        await asyncio.sleep(2 * RECHECK_DELAYS_SECONDS[-1])  # it has fallen asleep
        connection.sent.clear()
        connection.found = [[job(1)._replace(ready_seconds=waited)], [job(2)._replace(ready_seconds=waited)]]
        while connection.found:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        running.cancel()
        return connection.sent

    return asyncio.run(asyncio.wait_for(story(), 60))


def test_a_host_that_finds_a_missed_job_says_so_once() -> None:
    assert missed(5.0, 3).count("host_notify_all") == 1
    assert "host_notify_all" not in missed(MISSED_NOTIFICATION_SECONDS / 2, 3), "its host is on its way"
    assert "host_notify_all" not in missed(5.0, 0), "there is no other host"


def test_room_in_a_dry_queue_triggers_no_claim() -> None:
    async def story() -> list[int]:
        connection = EmptyDatabase()
        claims = claimer(
            connection, Settings(poll_interval=60.0, ageing_delay=0)
        )  # every look is a whole one
        running = asyncio.ensure_future(claims.run())
        claims.on_reconnect()
        await asyncio.sleep(2 * RECHECK_DELAYS_SECONDS[-1])  # it has fallen asleep
        seen = [len(connection.asked)]
        for happens in (claims.on_capacity, claims.on_notification, claims.on_capacity):
            happens("q")
            await asyncio.sleep(0.01)
            seen.append(len(connection.asked))
        claims.wake_for_all_queues()
        await asyncio.sleep(0.01)
        running.cancel()
        return [*seen, len(connection.asked)]

    before, room, heard, room_again, poked = asyncio.run(story())
    assert room == before
    assert heard > room, "the broken twin: it is told that there is something"
    assert room_again == heard
    assert poked > heard


def test_a_look_for_the_oldest_is_followed_by_an_ordinary_one() -> None:
    """It leaves jobs whose task is limited by now to the ordinary look, which must not wait for the poll."""

    async def story() -> list[str]:
        connection = EmptyDatabase()
        claims = claimer(connection, Settings(poll_interval=3600.0, ageing_delay=60.0))
        running = asyncio.ensure_future(claims.run())
        claims.on_reconnect()
        await asyncio.sleep(2 * RECHECK_DELAYS_SECONDS[-1])  # it has fallen asleep
        connection.asked.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + 60
        while "claim_oldest" not in connection.names and loop.time() < until:
            claims.on_notification("q")
            await asyncio.sleep(0.02)  # not so often that it stops asking for notifications
        while connection.names[-1] != "claim" and loop.time() < until:
            await asyncio.sleep(0.01)  # there are no more notifications
        running.cancel()
        return connection.names

    names = asyncio.run(story())
    assert "claim_oldest" in names
    assert names[-1] == "claim"


def test_a_look_begins_where_work_was_found_and_leaves_no_priority_out() -> None:
    positions = ClaimPositions(60.0)
    assert positions.ranges(["q"], ScanKind.POSITIONS) == {}, "nothing is known: everywhere"
    positions.record_jobs([job(5, 0), job(7, 0), job(3, 9), job(1, 0, "r")])
    places = positions.ranges(["q", "r", "s"], ScanKind.POSITIONS)
    assert places == {
        "q": [
            ScanRange(10, HIGHEST_PRIORITY, WHOLE_QUEUE[0].first_id),
            ScanRange(9, 9, 4),
            ScanRange(1, 8, WHOLE_QUEUE[0].first_id),
            ScanRange(0, 0, 8),
            ScanRange(LOWEST_PRIORITY, -1, WHOLE_QUEUE[0].first_id),
        ],
        "r": [
            ScanRange(1, HIGHEST_PRIORITY, WHOLE_QUEUE[0].first_id),
            ScanRange(0, 0, 2),
            ScanRange(LOWEST_PRIORITY, -1, WHOLE_QUEUE[0].first_id),
        ],
    }
    positions.record_jobs([job(2, 0)])
    assert ScanRange(0, 0, 3) in positions.ranges(["q"], ScanKind.POSITIONS)["q"], (
        "work was found further in front: it goes on there"
    )


def test_the_ends_of_what_a_priority_can_be() -> None:
    positions = ClaimPositions(60.0)
    positions.record_jobs([job(1, HIGHEST_PRIORITY), job(2, LOWEST_PRIORITY)])
    assert positions.ranges(["q"], ScanKind.POSITIONS)["q"] == [
        ScanRange(HIGHEST_PRIORITY, HIGHEST_PRIORITY, 2),
        ScanRange(LOWEST_PRIORITY + 1, HIGHEST_PRIORITY - 1, WHOLE_QUEUE[0].first_id),
        ScanRange(LOWEST_PRIORITY, LOWEST_PRIORITY, 3),
    ]


def test_of_many_priorities_the_ones_last_used_are_remembered() -> None:
    positions = ClaimPositions(60.0)
    for priority in range(3 * MAX_PRIORITIES_REMEMBERED):
        positions.record_jobs([job(priority + 1, priority), job(500, 1000)])
    ranges = positions.ranges(["q"], ScanKind.POSITIONS)["q"]
    assert ScanRange(1000, 1000, 501) in ranges
    assert sum(place.low_priority == place.high_priority for place in ranges) == MAX_PRIORITIES_REMEMBERED


def test_heads_take_a_twentieth_of_the_time() -> None:
    positions = ClaimPositions(60.0)
    assert positions.is_head_scan_due(0.0)
    positions.record_duration(0.5, 10.0, ScanKind.HEAD, includes_limited=True, jobs=1)
    assert not positions.is_head_scan_due(10.0 + PAUSE_PER_SCAN_FACTOR * 0.5 - 0.01)
    assert positions.is_head_scan_due(10.0 + PAUSE_PER_SCAN_FACTOR * 0.5)
    assert positions.is_limited_scan_due(10.0), "what a head took says nothing about limits"
    positions.record_duration(0.004, 11.0, ScanKind.POSITIONS, includes_limited=True, jobs=1)
    assert positions.is_limited_scan_due(11.0)
    positions.record_duration(0.1, 12.0, ScanKind.POSITIONS, includes_limited=True, jobs=1)
    assert not positions.is_limited_scan_due(12.9)
    assert positions.is_limited_scan_due(13.0)


def test_a_slow_head_is_noticed_however_many_limited_jobs_it_brings() -> None:
    positions = ClaimPositions(5.0)
    for _ in range(20):
        positions.record_duration(
            0.025, 1.0, ScanKind.POSITIONS, includes_limited=True, jobs=500, limited=500
        )
    positions.record_duration(0.025, 2.0, ScanKind.HEAD, includes_limited=True, jobs=500, limited=500)
    assert positions.is_head_scan_due(2.0), "it took no longer than a look at the places only"
    positions.record_duration(0.065, 3.0, ScanKind.HEAD, includes_limited=True, jobs=500, limited=500)
    assert [positions.is_head_scan_due(3.0 + after) for after in (0.7, 0.9)] == [False, True]


def test_a_host_looks_again_as_soon_as_it_may_look_where_it_did_not() -> None:
    positions = ClaimPositions(5.0)
    positions.record_duration(1.0, 10.0, ScanKind.HEAD, includes_limited=True, jobs=0)
    positions.record_duration(0.15, 10.0, ScanKind.POSITIONS, includes_limited=True, jobs=1, limited=1)
    head_at, gates_at = 15.0, pytest.approx(10.15, abs=0.01)
    assert positions.next_scan_at(is_full_scan=False, includes_limited=False) == gates_at, (
        "jobs behind limits do not wait for the head"
    )
    assert positions.next_scan_at(is_full_scan=True, includes_limited=False) == gates_at
    assert positions.next_scan_at(is_full_scan=False, includes_limited=True) == head_at
    assert positions.next_scan_at(is_full_scan=True, includes_limited=True) == inf


def steps(positions: ClaimPositions, queue: str = "q") -> list[tuple[int, int]]:
    """The ids that the next claim scans before its positions, by priority."""
    return [
        (place.first_id, place.last_id)
        for place in positions.ranges([queue], ScanKind.HEAD)[queue]
        if place.last_id < LAST
    ]


def test_a_look_behind_limits_that_brings_many_jobs_is_not_slow() -> None:
    positions = ClaimPositions(5.0)
    positions.record_duration(0.03, 10.0, ScanKind.POSITIONS, includes_limited=True, jobs=100, limited=100)
    assert positions.is_limited_scan_due(10.0)
    positions.record_duration(0.1303, 10.0, ScanKind.POSITIONS, includes_limited=True, jobs=0, limited=1)
    assert [positions.is_limited_scan_due(10.0 + after) for after in (0.12, 0.14)] == [False, True], (
        "half of the time"
    )
    positions.record_duration(0.13, 10.0, ScanKind.POSITIONS, includes_limited=True, jobs=0)
    assert [positions.is_limited_scan_due(10.0 + after) for after in (0.9, 1.1)] == [False, True], (
        "a look in vain"
    )
    positions.record_duration(1.0, 20.0, ScanKind.POSITIONS, includes_limited=True, jobs=0)
    assert [positions.is_limited_scan_due(20.0 + after) for after in (2.9, 3.1)] == [False, True], (
        "a very slow one"
    )


def test_a_look_from_the_head_that_became_slow_is_made_in_steps() -> None:
    positions = ClaimPositions(60.0)
    place = 10 * MIN_STEP_IDS
    positions.record_jobs([job(place - 1)])
    assert positions.ranges(["q"], ScanKind.HEAD) == {}, "everywhere"
    positions.record_duration(1.0, 0.0, ScanKind.HEAD, includes_limited=True, jobs=1)
    assert steps(positions) == [(place - MIN_STEP_IDS, place - 1)]
    assert [r for r in positions.ranges(["q"], ScanKind.POSITIONS)["q"] if r.last_id < LAST] == [], (
        "and the claims between them have none"
    )
    below, now = place, 1.0
    for _ in range(3):
        assert steps(positions) == [(below - MIN_STEP_IDS, below - 1)]
        assert not positions.record_scan([], {"q": 5}, now, ScanKind.HEAD)
        positions.record_duration(1.0, now, ScanKind.HEAD, includes_limited=True, jobs=0)
        below -= MIN_STEP_IDS
    positions.record_jobs([job(place + 7)])
    assert steps(positions) == [(below - MIN_STEP_IDS, below - 1)], (
        "what is found at the place does not move the step"
    )
    depth = MIN_STEP_IDS
    while not positions.record_scan([], {"q": 5}, now, ScanKind.HEAD):
        positions.record_duration(0.001, now, ScanKind.HEAD, includes_limited=True, jobs=0)
        below, depth = below - depth, 2 * depth
        assert steps(positions) == [(below - depth if below > depth else WHOLE_QUEUE[0].first_id, below - 1)]
    assert not positions._head_scan._rounds, "the round is over"
    for _ in range(4):
        positions.record_duration(0.001, now, ScanKind.HEAD, includes_limited=True, jobs=0)
    assert positions.ranges(["q"], ScanKind.HEAD) == {}, "quick steps have become a look from the head again"


def test_a_step_with_more_jobs_than_room_is_made_again_and_moves_no_place() -> None:
    positions = ClaimPositions(60.0)
    positions.record_jobs([job(5 * MIN_STEP_IDS), job(3 * MIN_STEP_IDS, 4)])
    positions.record_duration(1.0, 0.0, ScanKind.HEAD, includes_limited=True, jobs=1)
    here = steps(positions)
    assert here == [(4 * MIN_STEP_IDS + 1, 5 * MIN_STEP_IDS)], "nothing of the other priority is there"
    late = [job(4 * MIN_STEP_IDS + n) for n in range(2, 4)]
    assert not positions.record_scan(late, {"q": 2}, 1.0, ScanKind.HEAD)
    positions.record_jobs(late)
    assert steps(positions) == here
    assert ScanRange(0, 0, 5 * MIN_STEP_IDS + 1) in positions.ranges(["q"], ScanKind.POSITIONS)["q"]
    assert not positions.record_scan(late[:1], {"q": 2}, 1.0, ScanKind.HEAD)
    assert (
        steps(positions)
        == [(3 * MIN_STEP_IDS + 1, 3 * MIN_STEP_IDS), (3 * MIN_STEP_IDS + 1, 4 * MIN_STEP_IDS)][1:]
    )
    assert not positions.record_scan(
        [job(6 * MIN_STEP_IDS), job(7 * MIN_STEP_IDS)], {"q": 2}, 1.0, ScanKind.HEAD
    )
    assert steps(positions) == [
        (2 * MIN_STEP_IDS + 1, 3 * MIN_STEP_IDS),
        (2 * MIN_STEP_IDS + 1, 3 * MIN_STEP_IDS),
    ], "all that there was room for came from the place: it goes on"


def test_a_round_that_takes_long_gets_more_of_the_time_in_steps_as_short_as_before() -> None:
    positions = ClaimPositions(5.0)
    positions.record_jobs([job(40 * MIN_STEP_IDS)])
    positions.record_duration(1.0, 0.0, ScanKind.HEAD, includes_limited=True, jobs=1)
    assert not positions.record_scan([], {"q": 1}, 1.0, ScanKind.HEAD)
    positions.record_duration(0.1, 1.0, ScanKind.HEAD, includes_limited=True, jobs=0)
    assert not positions.is_head_scan_due(2.9)
    now, asked = 6.1, 1
    while not positions.record_scan([], {"q": 1}, now, ScanKind.HEAD):
        positions.record_duration(0.1, now, ScanKind.HEAD, includes_limited=True, jobs=0)
        assert [last - first for first, last in steps(positions) if first > 0] in ([MIN_STEP_IDS - 1], [])
        assert not positions.is_head_scan_due(now + PAUSE_PER_LATE_SCAN_FACTOR * 0.1 - 0.01)
        assert positions.is_head_scan_due(now + PAUSE_PER_LATE_SCAN_FACTOR * 0.1)
        now, asked = now + PAUSE_PER_LATE_SCAN_FACTOR * 0.1, asked + 1
    assert asked == 40, "each of them was slow, and none was left out"
    positions.record_duration(0.1, now, ScanKind.HEAD, includes_limited=True, jobs=0)
    assert not positions.is_head_scan_due(now + PAUSE_PER_SCAN_FACTOR * 0.1 - 0.01), (
        "the next round is in no haste"
    )


def test_a_look_from_the_head_that_takes_no_longer_than_another_is_made_every_time() -> None:
    positions = ClaimPositions(60.0)
    positions.record_duration(0.002, 1.0, ScanKind.HEAD, includes_limited=True, jobs=0)
    assert not positions.is_head_scan_due(1.03), "nobody knows how long another takes"
    positions.record_duration(0.002, 1.03, ScanKind.POSITIONS, includes_limited=True, jobs=0)
    positions.record_duration(0.002 + 0.0003, 2.0, ScanKind.HEAD, includes_limited=True, jobs=10)
    assert positions.is_head_scan_due(2.0)
    positions.record_duration(0.003, 3.0, ScanKind.HEAD, includes_limited=True, jobs=0)
    assert not positions.is_head_scan_due(3.019)
    assert positions.is_head_scan_due(3.0201), (
        "as often as what it takes in addition is a twentieth of the time"
    )


def test_a_database_that_is_far_away_is_not_slow() -> None:
    positions = ClaimPositions(5.0)
    positions.record_jobs([job(1 << 30)])
    positions.record_duration(0.05, 1.0, ScanKind.POSITIONS, includes_limited=True, jobs=0)
    positions.record_duration(0.05, 1.0, ScanKind.HEAD, includes_limited=True, jobs=0)
    assert positions.ranges(["q"], ScanKind.HEAD) == {}


def test_the_oldest_first_is_sought_at_the_places_and_in_steps_of_its_own_when_it_is_slow() -> None:
    positions = ClaimPositions(60.0)
    positions.record_jobs([job(10 * MIN_STEP_IDS), job(8 * MIN_STEP_IDS, 7)])
    assert positions.ranges(["q"], ScanKind.OLDEST_FIRST) == {}, "everywhere"
    positions.record_duration(0.1, 2.0, ScanKind.OLDEST_FIRST, includes_limited=True, jobs=0)
    assert positions.is_head_scan_due(2.0)
    assert positions.ranges(["q"], ScanKind.HEAD) == {}, "what it took says nothing about the others"
    assert not positions.is_oldest_first_due(3.9)
    assert positions.is_oldest_first_due(4.0)
    for step in (9, 8):
        oldest = positions.ranges(["q"], ScanKind.OLDEST_FIRST)["q"]
        assert ScanRange(0, 0, step * MIN_STEP_IDS + 1, (step + 1) * MIN_STEP_IDS) in oldest
        assert {ScanRange(0, 0, 10 * MIN_STEP_IDS + 1), ScanRange(7, 7, 8 * MIN_STEP_IDS + 1)} <= set(oldest)
        assert not positions.record_scan([], {"q": 5}, 4.0, ScanKind.OLDEST_FIRST)


def test_a_slow_answer_does_not_keep_the_head_from_being_looked_at() -> None:
    """Three seconds of a slow network would be a minute, and a job that was given back waits in front of idle workers."""
    positions = ClaimPositions(5.0)
    positions.record_duration(3.0, 10.0, ScanKind.HEAD, includes_limited=True, jobs=0)
    assert positions.is_head_scan_due(15.0)
    positions.record_duration(3.0, 20.0, ScanKind.POSITIONS, includes_limited=True, jobs=0)
    assert positions.is_limited_scan_due(25.0)


def test_a_large_claim_is_handed_over_in_pieces_and_others_have_their_turn_in_between() -> None:
    class Dispatcher:
        def __init__(self) -> None:
            self.taken: list[int] = []

        def accept(self, claimed: list[int]) -> None:
            assert len(claimed) <= DISPATCH_CHUNK_JOBS
            self.taken += claimed
            time.sleep(2 * DISPATCH_SLICE_SECONDS)  # the hosts that were woken have the core

    async def story() -> tuple[list[int], list[int]]:
        dispatcher, seen = Dispatcher(), list[int]()
        claims = Claimer(
            "host", cast("Any", None), cast("Any", dispatcher), EventBus(), Settings(), lambda: True
        )

        async def other() -> None:
            while len(dispatcher.taken) < 5 * DISPATCH_CHUNK_JOBS:
                seen.append(len(dispatcher.taken))
                await asyncio.sleep(0)

        waiting = asyncio.ensure_future(other())
        claimed = cast("Any", list(range(5 * DISPATCH_CHUNK_JOBS)))
        await claims._dispatch_in_chunks(claimed)
        await waiting
        return dispatcher.taken, seen

    taken, seen = asyncio.run(story())
    assert taken == list(range(5 * DISPATCH_CHUNK_JOBS)), "all of it, in its order"
    assert {
        DISPATCH_CHUNK_JOBS,
        2 * DISPATCH_CHUNK_JOBS,
        3 * DISPATCH_CHUNK_JOBS,
        4 * DISPATCH_CHUNK_JOBS,
    } <= set(seen)
