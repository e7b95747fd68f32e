"""Events as metrics: counters in the memory of the master, which outlives every worker and supervisor.

An event of a job costs one dictionary lookup and a few additions. Sums of buckets, gauges and the text are made at a scrape.
Series of declared queues and tasks exist from the start with the value 0. Cluster-wide series exist while this host is the
leader.

Attempt events arrive in batches, and neighbours in a batch mostly belong to one task. `JobMetrics` looks up the series of a
task once per run of neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from math import inf
from operator import attrgetter
from time import time as _now
from typing import Any

import psutil
import psycopg

from pgworkers import events
from pgworkers.clock import monotonic
from pgworkers.events import BatchHandler, ByKind, each
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.model import Verdict
from pgworkers.observe import metrics_catalog, metrics_exposition
from pgworkers.observe.handler_metrics import HandlerMetricFamilies
from pgworkers.observe.metrics_series import MAX_SERIES_PER_FAMILY, Exemplar, Family, Series
from pgworkers.states import WorkerExitReason, WorkerState


class Metrics(ByKind):
    """Updates metrics from events, and answers scrapes."""

    def __init__(self, *, max_series: int = MAX_SERIES_PER_FAMILY) -> None:
        families: dict[str, Family] = {}
        capped = Family(metrics_catalog.METRICS["series_capped_total"], lambda: None)
        counts = {what: capped.series_for(what) for what in metrics_catalog.CAPPED_LABELS}
        for name, metric in metrics_catalog.METRICS.items():
            families[name] = Family(metric, _incrementer(counts[_capped_label(metric)]), max_series)
        families["series_capped_total"] = capped
        self.families = families
        self.handler_metrics = HandlerMetricFamilies(_incrementer(counts["user"]))
        self._job_metrics = JobMetrics(families, max_series)
        self._error_classes: dict[str, str] = {}
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            events.StatementExecuted: self._on_statement,
            events.JobsClaimed: self._on_claimed,
            events.NotificationReceived: lambda event: self.count("notifications_total"),
            events.StopCompleted: self._job_metrics.on_stopped,
            events.JobRescued: lambda event: self.count("jobs_rescued_total", event.queue, "host_lost"),
            events.LeaseLost: lambda event: self.count("leases_lost_total", event.queue),
            events.FinishRejected: lambda event: self.count("finishes_rejected_total", event.queue),
            events.WorkerForked: lambda event: self.count("worker_starts_total", event.queue),
            events.WorkerReady: lambda event: self._observe(
                "worker_start_seconds", event.seconds, event.queue
            ),
            events.WorkerDied: self._on_worker_died,
            events.SupervisorDied: self._on_supervisor_died,
            events.OrphansKilled: lambda event: self.count("orphans_killed_total", n=event.count),
            events.FormerHostProcessesKilled: lambda event: self.count("orphans_killed_total", n=event.count),
            events.DutyPerformed: self._on_duty_done,
            events.DutyFailed: lambda event: self.count("duty_failures_total", event.duty),
            events.DatabaseConnectionRestored: lambda event: self.count("db_reconnects_total", event.role),
            events.TickFired: self._on_tick,
            events.TicksMissed: lambda event: self.count(
                "schedule_ticks_total", event.schedule, "missed", n=event.count
            ),
            events.ScheduleFailed: lambda event: self.count("schedule_ticks_total", event.schedule, "failed"),
            events.QueuesMeasured: self._on_queues,
            events.SchedulesMeasured: self._on_schedules,
            events.StorageMeasured: self._on_table_sizes,
            events.MemoryMeasured: self._on_memory,
            events.LoopLagMeasured: lambda event: self._observe("loop_lag_seconds", event.seconds),
            events.LeadershipChanged: self._on_leader_changed,
            events.HandlerMetricsReceived: lambda event: self.handler_metrics.add(event.task, event.body),
            events.OutputDropped: lambda event: self.count(
                "output_dropped_bytes_total", event.queue, n=event.count
            ),
            events.ReportsDropped: lambda event: self.count("reports_dropped_total", n=event.count),
            events.LogLinesDropped: lambda event: self.count("log_lines_dropped_total", n=event.count),
        }
        for name in (
            "notifications_total",
            "orphans_killed_total",
            "log_lines_dropped_total",
            "reports_dropped_total",
            "leader",
        ):
            families[name].series_for()
        for name in ("loop_lag_seconds", "claim_batch_jobs"):
            families[name].histogram_for()
        for role in metrics_catalog.CONNECTION_ROLES:
            families["db_reconnects_total"].series_for(role)
        for op in metrics_catalog.DECLARED_OPERATIONS:
            families["db_operation_seconds"].histogram_for(op)
            for kind in metrics_catalog.DATABASE_ERROR_CLASSES:
                families["db_errors_total"].series_for(op, kind)
        for reason in metrics_catalog.STOP_REASONS:
            families["job_stop_seconds"].histogram_for(reason)
        for state in metrics_catalog.HOST_STATES:
            families["master_state"].series_for(state)

    def declare(
        self, tasks: Iterable[tuple[str, str]], queues: Iterable[str], schedules: Iterable[str] = ()
    ) -> None:
        """Create series at 0 for what the app declares; called again after a reload."""
        f = self.families
        for queue in queues:
            if f["workers"].has_series(queue, WorkerState.IDLE.value):
                continue
            for name in ("job_wait_seconds", "worker_start_seconds"):
                f[name].histogram_for(queue)
            for name, metric in metrics_catalog.METRICS.items():
                if metric.labels == ("queue",) and metric.kind != "histogram" and not metric.is_cluster_wide:
                    f[name].series_for(queue)
            f["jobs_rescued_total"].series_for(queue, Verdict.HOST_LOST.value)
            for reason in metrics_catalog.WORKER_EXIT_REASONS:
                f["worker_exits_total"].series_for(queue, reason)
            for state in metrics_catalog.WORKER_STATES:
                f["workers"].series_for(queue, state)
        for queue, task in tasks:
            self._job_metrics.declare(queue, task)
        for schedule in schedules:
            for result in metrics_catalog.TICK_RESULTS:
                f["schedule_ticks_total"].series_for(schedule, result)

    def handler_for(self, kind: type) -> BatchHandler | None:
        if kind is events.AttemptStarted:
            return self._job_metrics.on_started
        if kind is events.AttemptEnded:
            return self._job_metrics.on_ended
        on = self._handlers.get(kind)
        return None if on is None else each(on)

    def count(self, name: str, *labels: str, n: float = 1) -> None:
        self.families[name].series_for(*labels).value += n

    def set(self, name: str, value: float, *labels: str) -> None:
        self.families[name].series_for(*labels).value = float(value)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type."""
        self._job_metrics.update_peaks()
        for name, value in _process_metrics().items():
            self.set(name, value)
        openmetrics = metrics_exposition.is_openmetrics_preferred(accept)
        every = (*self.families.values(), *self.handler_metrics.families.values())
        body = metrics_exposition.render_metrics(every, openmetrics)
        return (
            body,
            metrics_exposition.OPENMETRICS_CONTENT_TYPE
            if openmetrics
            else metrics_exposition.TEXT_CONTENT_TYPE,
        )

    # -- processes ---------------------------------------------------------------------------------------------------

    def _on_worker_died(self, event: events.WorkerDied) -> None:
        self.count(
            "worker_exits_total",
            event.queue,
            event.reason
            if event.reason in metrics_catalog.WORKER_EXIT_REASONS
            else WorkerExitReason.IDLE.value,
        )
        if event.orphans_killed:
            self.count("orphans_killed_total", n=event.orphans_killed)

    def _on_supervisor_died(self, event: events.SupervisorDied) -> None:
        if event.restart_in is not None:
            self.count("supervisor_restarts_total", event.queue)

    def _on_memory(self, event: events.MemoryMeasured) -> None:
        for name, largest in (
            ("worker_memory_bytes", event.total_bytes),
            ("worker_memory_max_bytes", event.largest_bytes),
        ):
            for queue, value in largest.items():
                self.set(name, value, queue)

    # -- the database ------------------------------------------------------------------------------------------------

    def _on_statement(self, event: events.StatementExecuted) -> None:
        self.families["db_operation_seconds"].histogram_for(event.statement).observe(event.seconds)
        if event.error is not None:
            self.count("db_errors_total", event.statement, self._error_class(event.error))

    def _error_class(self, name: str) -> str:
        """The DB-API class of an error: a closed set."""
        if name not in self._error_classes:
            error = getattr(psycopg.errors, name, getattr(psycopg, name, psycopg.OperationalError))
            lineage = [parent.__name__ for parent in getattr(error, "__mro__", ())]
            self._error_classes[name] = next(
                (kind for kind in metrics_catalog.DATABASE_ERROR_CLASSES if kind in lineage),
                "OperationalError",
            )
        return self._error_classes[name]

    def _on_claimed(self, event: events.JobsClaimed) -> None:
        self._observe("claim_batch_jobs", float(event.count))

    def _on_duty_done(self, event: events.DutyPerformed) -> None:
        self._observe("duty_seconds", event.seconds, event.duty)
        self.count("duty_rows_total", event.duty, n=event.count)
        self.families["duty_failures_total"].series_for(event.duty)

    def _on_tick(self, event: events.TickFired) -> None:
        self.count("schedule_ticks_total", event.schedule, "fired" if event.job is not None else "skipped")

    # -- what the leader saw -----------------------------------------------------------------------------------------

    def _on_leader_changed(self, event: events.LeadershipChanged) -> None:
        if not event.is_leader:
            for family in self.families.values():
                if family.metric.is_cluster_wide:
                    family.clear()

    def _on_queues(self, event: events.QueuesMeasured) -> None:
        for name in (
            "queue_jobs",
            "queue_oldest_ready_seconds",
            "queue_paused",
            "queue_limit",
            "queue_throttled",
        ):
            self.families[name].clear()
        for seen in event.queues:
            for state in metrics_catalog.QUEUE_STATES:
                self.count("queue_jobs", seen.queue, state, n=getattr(seen, state))
            oldest = self.families["queue_oldest_ready_seconds"].series_for(seen.queue)
            oldest.value = max(oldest.value, seen.oldest)
            self.set("queue_paused", seen.is_paused, seen.queue)
            self.set("queue_throttled", seen.is_throttled, seen.queue)
            if seen.limit is not None:
                self.set("queue_limit", seen.limit, seen.queue)
        self.set("snapshot_timestamp_seconds", _now())

    def _on_schedules(self, event: events.SchedulesMeasured) -> None:
        last, following = "schedule_last_tick_timestamp_seconds", "schedule_next_tick_timestamp_seconds"
        self.families[last].clear()
        self.families[following].clear()
        for seen in event.schedules:
            self.declare((), (), [seen.schedule])
            if seen.last_tick_at is not None:
                self.set(last, seen.last_tick_at, seen.schedule)
            if seen.next_tick_at is not None:
                self.set(following, seen.next_tick_at, seen.schedule)

    def _on_table_sizes(self, event: events.StorageMeasured) -> None:
        self.families["table_dead_tuples"].clear()
        self.families["table_bytes"].clear()
        for table in event.tables:
            self.set("table_dead_tuples", table.dead_rows, table.table)
            self.set("table_bytes", table.total_bytes, table.table)
        self.set("oldest_transaction_seconds", event.oldest_transaction_seconds)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        self.families[name].histogram_for(*labels).observe(value if value > 0 else 0.0)


def _capped_label(metric: metrics_catalog.Metric) -> str:
    """The label that has too many values, when a family is full."""
    if "task" in metric.labels:
        return "job"
    return next((what for what in metrics_catalog.CAPPED_LABELS if what in metric.labels), "queue")


def _incrementer(cell: Series) -> Callable[[], None]:
    def count() -> None:
        cell.value += 1

    return count


#: The largest peak is that of the last one to two windows.
PEAK_WINDOW_SECONDS = 300.0
_by_task, _by_verdict = attrgetter("queue", "task"), attrgetter("queue", "task", "verdict")


class _TaskSeries:
    """The series of one queue and task."""

    __slots__ = ("cpu", "duration", "peak", "previous_peak", "recent_peak", "started", "verdicts", "wait")

    def __init__(self, families: dict[str, Family], queue: str, task: str) -> None:
        self.started = families["jobs_started_total"].series_for(queue, task)
        self.wait = families["job_wait_seconds"].histogram_for(queue)
        self.duration = families["job_duration_seconds"].histogram_for(queue, task)
        self.cpu = families["job_cpu_seconds_total"].series_for(queue, task)
        self.peak = families["job_peak_memory_bytes"].series_for(queue, task)
        self.recent_peak = self.previous_peak = 0  # the peak of this window and of the one before
        finished = families["jobs_finished_total"]
        self.verdicts = {
            verdict: finished.series_for(queue, task, verdict) for verdict in metrics_catalog.VERDICTS
        }


class JobMetrics:
    """Metrics of jobs by queue and task: waits, durations, usage and verdicts."""

    def __init__(self, families: dict[str, Family], max_series: int) -> None:
        self._families = families
        self._jobs: dict[tuple[str, str], _TaskSeries] = {}
        self._max_series = max_series
        self._peaks_since = monotonic()

    def on_started(self, batch: Iterator[events.AttemptStarted]) -> None:
        for key, group in groupby(batch, _by_task):
            waits = [event.waited_seconds for event in group]
            job = self._jobs.get(key) or self.declare(*key)
            job.started.value += len(waits)
            job.wait.observe_many(waits)

    def on_ended(self, batch: Iterator[events.AttemptEnded]) -> None:
        now = _now()
        for (queue, task, verdict), group in groupby(batch, _by_verdict):
            alike = list(group)
            job = self._jobs.get((queue, task)) or self.declare(queue, task)
            job.duration.observe_many(
                [event.duration for event in alike], [event.job for event in alike], now
            )
            end = job.verdicts[verdict]
            end.value += len(alike)
            if verdict != "succeeded":
                end.exemplar = Exemplar(alike[-1].job, 1.0, now)
            job.cpu.value += sum([event.cpu for event in alike if event.cpu > 0])
            job.recent_peak = max(job.recent_peak, *[event.peak_rss for event in alike])

    def on_stopped(self, event: events.StopCompleted) -> None:
        reason = event.reason if event.reason in metrics_catalog.STOP_REASONS else StopReason.KILL.word
        seconds = max(0.0, event.seconds)
        histogram = self._families["job_stop_seconds"].histogram_for(reason)
        histogram.observe(seconds, Exemplar(event.job, seconds, _now()))

    def declare(self, queue: str, task: str) -> _TaskSeries:
        """The series of a queue and task, created at 0."""
        job = self._jobs.get((queue, task))
        if job is None:
            job = _TaskSeries(self._families, queue, task)
            if (
                len(self._jobs) < self._max_series
            ):  # beyond it the families say `other`, and count that each time
                self._jobs[queue, task] = job
        return job

    def update_peaks(self) -> None:
        """Bring the peaks up to date for a scrape."""
        now = monotonic()
        turn = now - self._peaks_since >= PEAK_WINDOW_SECONDS
        if turn:
            self._peaks_since = now
        for job in self._jobs.values():
            job.peak.value = float(max(job.previous_peak, job.recent_peak))
            if turn:
                job.previous_peak, job.recent_peak = job.recent_peak, 0


def _process_metrics() -> dict[str, float]:
    """The metrics of this process, under the names that every Prometheus client library uses."""
    process = psutil.Process()
    with process.oneshot():
        memory = process.memory_info()
        max_descriptors, _ = process.rlimit(psutil.RLIMIT_NOFILE)
        return {
            "process_cpu_seconds_total": time.process_time(),
            "process_resident_memory_bytes": float(memory.rss),
            "process_virtual_memory_bytes": float(memory.vms),
            "process_start_time_seconds": process.create_time(),
            "process_open_fds": float(process.num_fds()),
            "process_max_fds": inf if max_descriptors == psutil.RLIM_INFINITY else float(max_descriptors),
        }
