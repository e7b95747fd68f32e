from __future__ import annotations

import pytest

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.supervisor import ladder
from pgworkers.supervisor.ladder import DUMP_TIMEOUT_SECONDS, MIN_DUMP_CHECKS, Rung, SlotView, StopRequest

RUNNING = SlotView(7, 1, is_running=True)


def climb_to_end(
    climb: StopRequest, seen: SlotView = RUNNING, step: float = 0.05, end: float = 30.0
) -> list[Rung]:
    """Let time pass and note each rung, as the supervisor does."""
    done: list[Rung] = []
    now = climb.requested_at
    while now < end:
        climb.was_running = climb.was_running or ladder.applies_to(climb, seen)
        climb.dump_checks += Rung.DUMP in climb.rung_times
        while (rung := ladder.next_rung(now, climb, seen)) is not None:
            climb.rung_times[rung] = now
            done.append(rung)
        now += step
    return done


def test_rungs_come_in_order_each_after_its_grace() -> None:
    climb = StopRequest(
        job=7, lease=1, reason=StopReason.CANCEL, requested_at=10.0, ask_grace=5.0, raise_grace=3.0
    )
    assert climb_to_end(climb) == [Rung.ASK, Rung.RAISE, Rung.DUMP, Rung.KILL]
    times = climb.rung_times
    assert times[Rung.ASK] == 10.0
    assert times[Rung.RAISE] >= times[Rung.ASK] + 5.0
    assert times[Rung.DUMP] >= times[Rung.RAISE] + 3.0
    assert times[Rung.KILL] >= times[Rung.DUMP] + DUMP_TIMEOUT_SECONDS
    assert [name for name, _ in climb.rungs_taken(was_raised=True)] == ["ask", "raise", "dump", "kill"]
    assert [name for name, _ in climb.rungs_taken(was_raised=False)] == ["ask", "signal", "dump", "kill"]
    assert climb.rungs_taken(was_raised=True)[0][1] == 0.0


def test_without_graces_only_the_dump_is_waited_for() -> None:
    climb = StopRequest(
        job=7,
        lease=1,
        reason=StopReason.DRAIN,
        requested_at=10.0,
        ask_grace=0.0,
        raise_grace=0.0,
        was_running=True,
    )
    for expected in (Rung.ASK, Rung.RAISE, Rung.DUMP):
        assert ladder.next_rung(10.0, climb, RUNNING) is expected
        climb.rung_times[expected] = 10.0
    assert ladder.next_rung(10.0, climb, RUNNING) is None
    assert ladder.next_rung(10.01, climb, RUNNING._replace(has_dumped=True)) is Rung.KILL
    assert ladder.next_rung(10.0 + DUMP_TIMEOUT_SECONDS, climb, RUNNING) is None, (
        "we did not look: perhaps nobody could run"
    )
    climb.dump_checks = MIN_DUMP_CHECKS
    assert ladder.next_rung(10.0 + DUMP_TIMEOUT_SECONDS - 0.01, climb, RUNNING) is None
    assert ladder.next_rung(10.0 + DUMP_TIMEOUT_SECONDS, climb, RUNNING) is Rung.KILL


def test_a_kill_neither_asks_nor_raises() -> None:
    climb = StopRequest(
        job=7,
        lease=1,
        reason=StopReason.KILL,
        requested_at=10.0,
        ask_grace=5.0,
        raise_grace=5.0,
        is_kill=True,
        was_running=True,
    )
    assert climb.next_rung_at() == 10.0
    assert climb_to_end(climb) == [Rung.DUMP, Rung.KILL]


def test_a_kill_after_another_stop_request_skips_its_graces() -> None:
    climb = StopRequest(
        job=7,
        lease=1,
        reason=StopReason.CANCEL,
        requested_at=10.0,
        ask_grace=5.0,
        raise_grace=5.0,
        was_running=True,
    )
    assert ladder.next_rung(10.0, climb, RUNNING) is Rung.ASK
    climb.rung_times[Rung.ASK] = 10.0
    climb.shorten(9.0, 9.0, is_kill=True)
    assert climb.next_rung_at() == 10.0
    assert ladder.next_rung(10.0, climb, RUNNING) is Rung.DUMP
    assert climb.reason is StopReason.CANCEL


@pytest.mark.parametrize(
    "seen",
    [
        SlotView(7, 2, is_running=True),  # the same job, run again
        SlotView(8, 1, is_running=True),  # the next job
        SlotView(0, 0, is_running=False),  # idle
        SlotView(7, 1, is_running=False),  # the handler has ended, its report is on the way
    ],
)
@pytest.mark.parametrize(
    "reached", [[], [Rung.ASK], [Rung.ASK, Rung.RAISE], [Rung.ASK, Rung.RAISE, Rung.DUMP]]
)
def test_another_execution_is_never_hit(seen: SlotView, reached: list[Rung]) -> None:
    climb = StopRequest(
        job=7,
        lease=1,
        reason=StopReason.CANCEL,
        requested_at=0.0,
        ask_grace=1.0,
        raise_grace=1.0,
        was_running=bool(reached),
        rung_times=dict.fromkeys(reached, 0.0),
    )
    assert ladder.next_rung(1e9, climb, seen) is None
    assert ladder.is_over(climb, seen) == bool(reached)


def test_a_stop_request_for_an_unstarted_job_waits() -> None:
    climb = StopRequest(
        job=7, lease=1, reason=StopReason.CANCEL, requested_at=0.0, ask_grace=0.0, raise_grace=0.0
    )
    assert climb_to_end(climb, SlotView(0, 0, is_running=False), end=1.0) == []
    assert climb.next_rung_at() is None
    assert not ladder.is_over(climb, SlotView(6, 1, is_running=True))
    assert climb_to_end(climb, RUNNING, end=1.0)[0] is Rung.ASK


def test_a_second_stop_request_can_only_shorten_the_graces() -> None:
    climb = StopRequest(
        job=7, lease=1, reason=StopReason.DRAIN, requested_at=0.0, ask_grace=5.0, raise_grace=5.0
    )
    climb.shorten(9.0, 1.0)
    assert (climb.ask_grace, climb.raise_grace, climb.reason) == (5.0, 1.0, StopReason.DRAIN)
    climb.shorten(0.0, 9.0)
    assert (climb.ask_grace, climb.raise_grace) == (0.0, 1.0)


def test_due_names_the_moment_of_the_next_rung() -> None:
    climb = StopRequest(
        job=7,
        lease=1,
        reason=StopReason.CANCEL,
        requested_at=1.0,
        ask_grace=2.0,
        raise_grace=3.0,
        was_running=True,
    )
    assert climb.next_rung_at() == 1.0
    climb.rung_times[Rung.ASK] = 1.0
    assert climb.next_rung_at() == 3.0
    climb.rung_times[Rung.RAISE] = 3.0
    assert climb.next_rung_at() == 6.0
    climb.rung_times[Rung.DUMP] = 6.0
    assert climb.next_rung_at() is None, "it is looked at again and again"
    climb.rung_times[Rung.KILL] = 6.1
    assert climb.next_rung_at() is None
    assert ladder.next_rung(99.0, climb, RUNNING) is None
