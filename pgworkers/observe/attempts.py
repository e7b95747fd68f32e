"""Attempts as metrics: how long jobs waited and ran, what they used, how they ended; by queue and task.

Facts of attempts are told tens of thousands of times a second, many at a time, and neighbours mostly are of one task:
its cells are looked up once for them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from time import time as _now

from pgworkers import events
from pgworkers.clock import monotonic
from pgworkers.observe import catalog
from pgworkers.observe.series import Family

#: The largest peak is that of the last one to two windows.
WINDOW = 300.0
_of_task, _of_end = attrgetter("queue", "task"), attrgetter("queue", "task", "verdict")


class _Job:
    """The cells of one queue and task."""

    __slots__ = ("before", "cpu", "duration", "peak", "recent", "started", "verdicts", "wait")

    def __init__(self, families: dict[str, Family], queue: str, task: str) -> None:
        self.started = families["jobs_started_total"].at(queue, task)
        self.wait = families["job_wait_seconds"].histogram(queue)
        self.duration = families["job_duration_seconds"].histogram(queue, task)
        self.cpu = families["job_cpu_seconds_total"].at(queue, task)
        self.peak = families["job_peak_memory_bytes"].at(queue, task)
        self.recent = self.before = 0  # the peak of this window and of the one before
        finished = families["jobs_finished_total"]
        self.verdicts = {verdict: finished.at(queue, task, verdict) for verdict in catalog.VERDICTS}


class Attempts:
    """Hears of jobs that started, ended and were stopped."""

    def __init__(self, families: dict[str, Family], most: int) -> None:
        self._families = families
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._most = most
        self._peaks_since = monotonic()

    def started(self, facts: Iterator[events.JobStarted]) -> None:
        for key, group in groupby(facts, _of_task):
            waits = [fact.waited for fact in group]
            job = self._jobs.get(key) or self.know(*key)
            job.started.value += len(waits)
            job.wait.observe_all(waits)

    def ended(self, facts: Iterator[events.JobEnded]) -> None:
        now = _now()
        for (queue, task, verdict), group in groupby(facts, _of_end):
            alike = list(group)
            job = self._jobs.get((queue, task)) or self.know(queue, task)
            job.duration.observe_all([fact.duration for fact in alike], [fact.job for fact in alike], now)
            end = job.verdicts[verdict]
            end.value += len(alike)
            if verdict != "succeeded":
                end.exemplar = (alike[-1].job, 1.0, now)
            job.cpu.value += sum([fact.cpu for fact in alike if fact.cpu > 0])
            job.recent = max(job.recent, *[fact.peak_rss for fact in alike])

    def stopped(self, fact: events.JobStopped) -> None:
        reason = fact.reason if fact.reason in catalog.STOP_REASONS else "kill"
        seconds = max(0.0, fact.seconds)
        histogram = self._families["job_stop_seconds"].histogram(reason)
        histogram.observe(seconds, (fact.job, seconds, _now()))

    def know(self, queue: str, task: str) -> _Job:
        """The cells of a queue and task, at 0 when they are new."""
        job = self._jobs.get((queue, task))
        if job is None:
            job = _Job(self._families, queue, task)
            if len(self._jobs) < self._most:  # beyond it the families say `other`, and count that each time
                self._jobs[queue, task] = job
        return job

    def turn_peaks(self) -> None:
        """Bring the peaks up to date for a scrape."""
        now = monotonic()
        turn = now - self._peaks_since >= WINDOW
        if turn:
            self._peaks_since = now
        for job in self._jobs.values():
            job.peak.value = float(max(job.before, job.recent))
            if turn:
                job.before, job.recent = job.recent, 0
