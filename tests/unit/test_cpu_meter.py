"""CPU time of jobs."""

from __future__ import annotations

import time
from resource import RUSAGE_CHILDREN
from types import SimpleNamespace

import pytest

from pgworkers.clock import boottime_ns
from pgworkers.worker import meter as worker_meter
from pgworkers.worker.meter import JobMeter


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU seconds of the process, as the test says: its own, and those of its children."""
    seconds = [0.0, 0.0]

    def getrusage(who: int) -> SimpleNamespace:
        return SimpleNamespace(ru_maxrss=1000, ru_utime=seconds[who == RUSAGE_CHILDREN], ru_stime=0.0)

    monkeypatch.setattr(worker_meter, "getrusage", getrusage)
    return seconds


def test_a_job_is_charged_the_cpu_that_it_used(cpu: list[float]) -> None:
    meter = JobMeter()
    assert meter.start(0, has_waited=True) == 0
    cpu[0] = 0.005
    used = meter.stop()
    assert (used.cpu, used.peak_rss) == (5000, 1000 * 1024)
    assert meter.start(9_000_000, has_waited=False) == 5000


def test_each_of_very_short_jobs_in_a_row_is_measured(cpu: list[float]) -> None:
    meter = JobMeter()
    meter.start(0, has_waited=True)
    for number in range(1, 10):
        cpu[0] += 10e-6
        cpu[1] += 5e-6
        assert meter.stop().cpu == 15
        assert meter.start(number, has_waited=False) == number * 15


def test_cpu_time_before_a_job_is_charged_to_no_job(cpu: list[float]) -> None:
    meter = JobMeter()
    meter.start(0, has_waited=True)
    meter.stop()
    cpu[0] = 0.003
    assert meter.start(5, has_waited=True) == 3000
    cpu[0] = 0.004
    assert meter.stop().cpu == 1000


def test_really() -> None:
    meter = JobMeter()
    before = meter.start(boottime_ns(), has_waited=True)
    end = time.process_time_ns() + 2_000_000
    while time.process_time_ns() < end:
        pass
    used = meter.stop()
    assert used.cpu >= 1900
    assert used.wall >= 1900
    assert used.peak_rss > 1 << 20
    assert meter.start(boottime_ns(), has_waited=False) >= before + 1900
