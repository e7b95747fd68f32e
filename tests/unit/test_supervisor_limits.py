from __future__ import annotations

from pgworkers.ipc.scoreboard import SlotJob, SlotState, StopReason
from pgworkers.supervisor.job_limits import find_broken_limit, is_far_over_memory_limit
from pgworkers.supervisor.stall_detector import LifeSigns, stall_after_seconds

JOB = SlotJob(
    7, 1, SlotState.RUNNING, started_at=100, deadline=0, memory_limit=0, cpu_at_start=0, output_start=0
)


def test_limits() -> None:
    assert find_broken_limit(10**9, JOB, 10**12) is StopReason.NONE
    timed = JOB._replace(deadline=500)
    assert find_broken_limit(499, timed, 0) is StopReason.NONE
    assert find_broken_limit(500, timed, 0) is StopReason.DEADLINE
    small = JOB._replace(memory_limit=1000)
    assert find_broken_limit(0, small, 1000) is StopReason.NONE
    assert find_broken_limit(0, small, 1001) is StopReason.MEMORY


def test_running_away() -> None:
    small = JOB._replace(memory_limit=1000)
    assert not is_far_over_memory_limit(small, 1500)
    assert is_far_over_memory_limit(small, 1501)
    assert not is_far_over_memory_limit(JOB, 10**12)


def test_a_handler_that_has_ended_breaks_no_limit() -> None:
    late = JOB._replace(deadline=500, memory_limit=1)
    assert find_broken_limit(501, late._replace(state=SlotState.REPORTING), 2) is StopReason.NONE
    assert find_broken_limit(501, late._replace(job=0), 2) is StopReason.NONE


def test_stalled_is_neither_beat_nor_cpu() -> None:
    pulse = LifeSigns()
    assert pulse.update(0.0, beat_count=1, cpu_ticks=5, stall_after=2.0) is None
    assert pulse.update(1.9, beat_count=1, cpu_ticks=5, stall_after=2.0) is None
    assert pulse.update(2.0, beat_count=1, cpu_ticks=5, stall_after=2.0) is True
    assert pulse.update(9.0, beat_count=1, cpu_ticks=5, stall_after=2.0) is None  # reported once
    assert pulse.update(9.1, beat_count=2, cpu_ticks=5, stall_after=2.0) is False
    assert pulse.update(10.0, beat_count=2, cpu_ticks=5, stall_after=2.0) is None


def test_cpu_without_a_beat_is_busy_and_a_beat_without_cpu_is_asleep() -> None:
    holds_gil, sleeps = LifeSigns(), LifeSigns()
    for second in range(100):
        assert holds_gil.update(float(second), beat_count=1, cpu_ticks=second, stall_after=2.0) is None
        assert sleeps.update(float(second), beat_count=second, cpu_ticks=1, stall_after=2.0) is None


def test_the_stall_timeout_is_longer_than_the_heartbeat() -> None:
    assert all(stall_after_seconds(beat) >= 3 * beat for beat in (0.05, 1.0, 60.0))


def test_an_idle_heartbeat_counts_as_alive_until_overdue_without_reading_proc() -> None:
    pulse = LifeSigns()
    assert pulse.is_recent(0.0, 1, stall_after=15.0)
    assert pulse.is_recent(5.0, 2, stall_after=15.0)
    assert pulse.is_recent(12.0, 2, stall_after=15.0)
    assert not pulse.is_recent(12.5, 2, stall_after=15.0), "overdue: its CPU time says more"


def test_a_resting_worker_that_is_stopped_stalls_after_the_longer_timeout() -> None:
    pulse = LifeSigns()
    assert pulse.is_recent(0.0, 1, stall_after=15.0)
    assert pulse.update(8.0, 1, cpu_ticks=5, stall_after=15.0, is_idle=True) is None
    assert pulse.update(14.9, 1, cpu_ticks=5, stall_after=15.0, is_idle=True) is None
    assert pulse.update(15.0, 1, cpu_ticks=5, stall_after=15.0, is_idle=True) is True
    assert not pulse.is_recent(16.0, 2, stall_after=15.0), "that it came back is to be told"
    assert pulse.update(16.0, 2, cpu_ticks=5, stall_after=15.0, is_idle=True) is False


def test_a_resting_worker_that_uses_cpu_is_alive() -> None:
    pulse = LifeSigns()
    assert pulse.is_recent(0.0, 1, stall_after=15.0)
    for second in range(8, 60):
        assert pulse.update(float(second), 1, cpu_ticks=second, stall_after=15.0, is_idle=True) is None


def test_a_worker_that_stops_resting_is_not_stalled_by_its_old_beat() -> None:
    pulse = LifeSigns()
    assert pulse.is_recent(0.0, 1, stall_after=15.0)
    assert pulse.update(5.0, 1, cpu_ticks=9, stall_after=3.0) is None, (
        "it leaves: no beat since 5 s, as is usual at rest"
    )
    assert pulse.update(7.9, 1, cpu_ticks=9, stall_after=3.0) is None
    assert pulse.update(8.0, 1, cpu_ticks=9, stall_after=3.0) is True
