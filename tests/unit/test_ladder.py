from __future__ import annotations

import pytest

from pgworkers.supervisor import ladder
from pgworkers.supervisor.ladder import DUMP_LOOKS, DUMP_TIME, Climb, Rung, Seen

RUNNING = Seen(7, 1, running=True)


def climb_to_end(climb: Climb, seen: Seen = RUNNING, step: float = 0.05, end: float = 30.0) -> list[Rung]:
    """Let time pass and note each rung, as the supervisor does."""
    done: list[Rung] = []
    now = climb.wished
    while now < end:
        climb.met = climb.met or ladder.concerns(climb, seen)
        climb.looks += Rung.DUMP in climb.times
        while (rung := ladder.tick(now, climb, seen)) is not None:
            climb.times[rung] = now
            done.append(rung)
        now += step
    return done


def test_rungs_come_in_order_each_after_its_grace() -> None:
    climb = Climb(7, 1, "cancel", 10.0, 5.0, 3.0)
    assert climb_to_end(climb) == [Rung.ASK, Rung.RAISE, Rung.DUMP, Rung.KILL]
    times = climb.times
    assert times[Rung.ASK] == 10.0
    assert times[Rung.RAISE] >= times[Rung.ASK] + 5.0
    assert times[Rung.DUMP] >= times[Rung.RAISE] + 3.0
    assert times[Rung.KILL] >= times[Rung.DUMP] + DUMP_TIME
    assert [name for name, _ in climb.record(struck=True)] == ["ask", "raise", "dump", "kill"]
    assert [name for name, _ in climb.record(struck=False)] == ["ask", "signal", "dump", "kill"]
    assert climb.record(struck=True)[0][1] == 0.0


def test_without_graces_only_the_dump_is_waited_for() -> None:
    climb = Climb(7, 1, "drain", 10.0, 0.0, 0.0, met=True)
    for expected in (Rung.ASK, Rung.RAISE, Rung.DUMP):
        assert ladder.tick(10.0, climb, RUNNING) is expected
        climb.times[expected] = 10.0
    assert ladder.tick(10.0, climb, RUNNING) is None
    assert ladder.tick(10.01, climb, RUNNING._replace(dumped=True)) is Rung.KILL
    assert ladder.tick(10.0 + DUMP_TIME, climb, RUNNING) is None, "we did not look: perhaps nobody could run"
    climb.looks = DUMP_LOOKS
    assert ladder.tick(10.0 + DUMP_TIME - 0.01, climb, RUNNING) is None
    assert ladder.tick(10.0 + DUMP_TIME, climb, RUNNING) is Rung.KILL


def test_a_kill_neither_asks_nor_raises() -> None:
    climb = Climb(7, 1, "kill", 10.0, 5.0, 5.0, hard=True, met=True)
    assert climb.due() == 10.0
    assert climb_to_end(climb) == [Rung.DUMP, Rung.KILL]


def test_a_kill_that_follows_another_wish_waits_for_none_of_its_graces() -> None:
    climb = Climb(7, 1, "cancel", 10.0, 5.0, 5.0, met=True)
    assert ladder.tick(10.0, climb, RUNNING) is Rung.ASK
    climb.times[Rung.ASK] = 10.0
    climb.hurry(9.0, 9.0, hard=True)
    assert climb.due() == 10.0
    assert ladder.tick(10.0, climb, RUNNING) is Rung.DUMP
    assert climb.reason == "cancel"


@pytest.mark.parametrize(
    "seen",
    [
        Seen(7, 2, running=True),  # the same job, run again
        Seen(8, 1, running=True),  # the next job
        Seen(0, 0, running=False),  # idle
        Seen(7, 1, running=False),  # the handler has ended, its report is on the way
    ],
)
@pytest.mark.parametrize(
    "reached", [[], [Rung.ASK], [Rung.ASK, Rung.RAISE], [Rung.ASK, Rung.RAISE, Rung.DUMP]]
)
def test_another_execution_is_never_hit(seen: Seen, reached: list[Rung]) -> None:
    climb = Climb(7, 1, "cancel", 0.0, 1.0, 1.0, met=bool(reached), times=dict.fromkeys(reached, 0.0))
    assert ladder.tick(1e9, climb, seen) is None
    assert ladder.over(climb, seen) == bool(reached)


def test_a_wish_for_a_job_that_has_not_begun_waits() -> None:
    climb = Climb(7, 1, "cancel", 0.0, 0.0, 0.0)
    assert climb_to_end(climb, Seen(0, 0, running=False), end=1.0) == []
    assert climb.due() is None
    assert not ladder.over(climb, Seen(6, 1, running=True))
    assert climb_to_end(climb, RUNNING, end=1.0)[0] is Rung.ASK


def test_a_second_wish_can_only_hurry() -> None:
    climb = Climb(7, 1, "drain", 0.0, 5.0, 5.0)
    climb.hurry(9.0, 1.0)
    assert (climb.ask_grace, climb.raise_grace, climb.reason) == (5.0, 1.0, "drain")
    climb.hurry(0.0, 9.0)
    assert (climb.ask_grace, climb.raise_grace) == (0.0, 1.0)


def test_due_names_the_moment_of_the_next_rung() -> None:
    climb = Climb(7, 1, "cancel", 1.0, 2.0, 3.0, met=True)
    assert climb.due() == 1.0
    climb.times[Rung.ASK] = 1.0
    assert climb.due() == 3.0
    climb.times[Rung.RAISE] = 3.0
    assert climb.due() == 6.0
    climb.times[Rung.DUMP] = 6.0
    assert climb.due() is None, "it is looked at again and again"
    climb.times[Rung.KILL] = 6.1
    assert climb.due() is None
    assert ladder.tick(99.0, climb, RUNNING) is None
