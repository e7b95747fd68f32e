"""CPU time of jobs, measured and guessed."""

from __future__ import annotations

import time

import pytest

from pgworkers.worker import meter as worker_meter
from pgworkers.worker.meter import JobMeter


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """CPU time of the process in nanoseconds, as the test says."""
    clock = [0]
    monkeypatch.setattr(worker_meter, "process_time_ns", lambda: clock[0])
    monkeypatch.setattr(worker_meter, "getrusage", lambda _who: _NOTHING)
    return clock


class _NOTHING:
    ru_maxrss = 1000
    ru_utime = ru_stime = 0.0


def test_a_job_is_told_what_it_used(cpu: list[int]) -> None:
    meter = JobMeter()
    assert meter.start(0, fresh=True) == 0
    cpu[0] = 5_000_000
    assert meter.stop(9_000_000) == (5000, 1000 * 1024)
    assert meter.start(9_000_000, fresh=False) == 5000


def test_what_the_shortest_used_is_shared_by_durations(cpu: list[int]) -> None:
    """Each of them is told what it took; the next that is measured does not pay for them."""
    meter = JobMeter()
    meter.start(0, fresh=True)
    for number in range(1, 10):
        assert meter.guess(10_000) == (10, 1000 * 1024)
        assert meter.start(number, fresh=False) == number * 10
    cpu[0] = 400_000  # and as much again between them
    assert meter.stop(110_000)[0] == 220
    cpu[0] = 500_000
    assert meter.stop(100_000)[0] == 100, "it has been shared out"


def test_time_before_a_job_that_was_waited_for_is_nobodys(cpu: list[int]) -> None:
    meter = JobMeter()
    meter.start(0, fresh=True)
    meter.guess(10_000)
    cpu[0] = 3_000_000
    assert meter.start(5, fresh=True) == 3000
    cpu[0] = 4_000_000
    assert meter.stop(1_000_000)[0] == 1000


def test_really() -> None:
    meter = JobMeter()
    before = meter.start(time.monotonic_ns(), fresh=True)
    end = time.process_time_ns() + 2_000_000
    while time.process_time_ns() < end:
        pass
    used, peak = meter.stop(2_000_000)
    assert used >= 1900
    assert peak > 1 << 20
    assert meter.start(time.monotonic_ns(), fresh=False) >= before + 1900
