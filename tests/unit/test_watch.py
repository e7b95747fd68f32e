from __future__ import annotations

from pgworkers.process.scoreboard import Reason, Running, State
from pgworkers.supervisor.watch import Pulse, broken_limit, patience, runs_away

JOB = Running(7, 1, State.RUNNING, started=100, deadline=0, memory=0, cpu_before=0, output_from=0)


def test_limits() -> None:
    assert broken_limit(10**9, JOB, 10**12) is Reason.NONE
    timed = JOB._replace(deadline=500)
    assert broken_limit(499, timed, 0) is Reason.NONE
    assert broken_limit(500, timed, 0) is Reason.DEADLINE
    small = JOB._replace(memory=1000)
    assert broken_limit(0, small, 1000) is Reason.NONE
    assert broken_limit(0, small, 1001) is Reason.MEMORY


def test_running_away() -> None:
    small = JOB._replace(memory=1000)
    assert not runs_away(small, 1500)
    assert runs_away(small, 1501)
    assert not runs_away(JOB, 10**12)


def test_a_handler_that_has_ended_breaks_no_limit() -> None:
    late = JOB._replace(deadline=500, memory=1)
    assert broken_limit(501, late._replace(state=State.REPORTING), 2) is Reason.NONE
    assert broken_limit(501, late._replace(job=0), 2) is Reason.NONE


def test_stalled_is_neither_beat_nor_cpu() -> None:
    pulse = Pulse()
    assert pulse.feel(0.0, beat=1, ticks=5, patience=2.0) is None
    assert pulse.feel(1.9, beat=1, ticks=5, patience=2.0) is None
    assert pulse.feel(2.0, beat=1, ticks=5, patience=2.0) is True
    assert pulse.feel(9.0, beat=1, ticks=5, patience=2.0) is None  # told once
    assert pulse.feel(9.1, beat=2, ticks=5, patience=2.0) is False
    assert pulse.feel(10.0, beat=2, ticks=5, patience=2.0) is None


def test_cpu_without_a_beat_is_busy_and_a_beat_without_cpu_is_asleep() -> None:
    holds_gil, sleeps = Pulse(), Pulse()
    for second in range(100):
        assert holds_gil.feel(float(second), beat=1, ticks=second, patience=2.0) is None
        assert sleeps.feel(float(second), beat=second, ticks=1, patience=2.0) is None


def test_patience_is_longer_than_the_heartbeat() -> None:
    assert all(patience(beat) >= 3 * beat for beat in (0.05, 1.0, 60.0))


def test_who_rests_is_alive_while_its_beat_is_not_overdue_and_nobody_asks_the_kernel() -> None:
    pulse = Pulse()
    assert pulse.beats(0.0, 1, patience=15.0)
    assert pulse.beats(5.0, 2, patience=15.0)
    assert pulse.beats(12.0, 2, patience=15.0)
    assert not pulse.beats(12.5, 2, patience=15.0), "overdue: its CPU time says more"


def test_who_rests_and_stands_still_stalls_after_its_longer_patience() -> None:
    pulse = Pulse()
    assert pulse.beats(0.0, 1, patience=15.0)
    assert pulse.feel(8.0, 1, ticks=5, patience=15.0, rests=True) is None
    assert pulse.feel(14.9, 1, ticks=5, patience=15.0, rests=True) is None
    assert pulse.feel(15.0, 1, ticks=5, patience=15.0, rests=True) is True
    assert not pulse.beats(16.0, 2, patience=15.0), "that it came back is to be told"
    assert pulse.feel(16.0, 2, ticks=5, patience=15.0, rests=True) is False


def test_who_rests_without_beats_and_uses_cpu_is_alive() -> None:
    pulse = Pulse()
    assert pulse.beats(0.0, 1, patience=15.0)
    for second in range(8, 60):
        assert pulse.feel(float(second), 1, ticks=second, patience=15.0, rests=True) is None


def test_who_stops_resting_is_not_stalled_because_its_last_beat_is_old() -> None:
    pulse = Pulse()
    assert pulse.beats(0.0, 1, patience=15.0)
    assert pulse.feel(5.0, 1, ticks=9, patience=3.0) is None, (
        "it leaves: no beat since 5 s, as is usual at rest"
    )
    assert pulse.feel(7.9, 1, ticks=9, patience=3.0) is None
    assert pulse.feel(8.0, 1, ticks=9, patience=3.0) is True
