"""Facts as metrics: counters in the memory of the master, which outlives every worker and supervisor.

A fact of a job (`attempts`) costs a look into a dictionary and a few additions; everything else (sums of buckets, gauges,
text) is made when somebody scrapes. Series of what the app declares are there at 0 from the start. What the leader saw of
the whole cluster goes as soon as it no longer leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import time as _now
from typing import Any

import psycopg

from pgworkers import events, lives, sightings
from pgworkers.facts import ByKind, Hearing, each
from pgworkers.observe import catalog, exposition
from pgworkers.observe.attempts import Attempts
from pgworkers.observe.handlers import UserMetrics
from pgworkers.observe.itself import ITSELF
from pgworkers.observe.series import MOST, Cell, Family


class Metrics(ByKind):
    """Listens to facts; answers scrapes."""

    def __init__(self, *, most: int = MOST) -> None:
        families: dict[str, Family] = {}
        capped = Family(catalog.METRICS["series_capped_total"], lambda: None)
        counts = {what: capped.at(what) for what in catalog.CAPPED}
        for name, metric in catalog.METRICS.items():
            families[name] = Family(metric, _counting(counts[_what(metric)]), most)
        families["series_capped_total"] = capped
        self.families = families
        self.user = UserMetrics(_counting(counts["user"]))
        self._attempts = Attempts(families, most)
        self._classes: dict[str, str] = {}
        self._on: dict[type[Any], Callable[[Any], None]] = {
            events.StatementRun: self._statement,
            events.Claimed: self._claimed,
            events.Notified: lambda fact: self.count("notifications_total"),
            events.JobStopped: self._attempts.stopped,
            events.JobRescued: lambda fact: self.count("jobs_rescued_total", fact.queue, "host_lost"),
            events.LeaseLost: lambda fact: self.count("leases_lost_total", fact.queue),
            events.FinishRejected: lambda fact: self.count("finishes_rejected_total", fact.queue),
            lives.WorkerForked: lambda fact: self.count("worker_starts_total", fact.queue),
            lives.WorkerReady: lambda fact: self._observe("worker_start_seconds", fact.seconds, fact.queue),
            lives.WorkerDied: self._worker_died,
            lives.SupervisorDied: self._supervisor_died,
            lives.OrphansKilled: lambda fact: self.count("orphans_killed_total", n=fact.count),
            lives.FormerHostEnded: lambda fact: self.count("orphans_killed_total", n=fact.count),
            events.DutyDone: self._duty_done,
            events.DutyFailed: lambda fact: self.count("duty_failures_total", fact.duty),
            events.DatabaseBack: lambda fact: self.count("db_reconnects_total", fact.role),
            events.TickFired: self._tick,
            events.TicksSkipped: lambda fact: self.count(
                "schedule_ticks_total", fact.schedule, "missed", n=fact.count
            ),
            events.ScheduleFailed: lambda fact: self.count("schedule_ticks_total", fact.schedule, "failed"),
            sightings.QueuesSeen: self._queues,
            sightings.SchedulesSeen: self._schedules,
            sightings.StorageSeen: self._storage,
            sightings.MemorySeen: self._memory,
            sightings.LoopWoke: lambda fact: self._observe("loop_lag_seconds", fact.late),
            events.LeaderChanged: self._leader,
            sightings.HandlerMeasured: lambda fact: self.user.add(fact.task, fact.body),
            events.OutputDropped: lambda fact: self.count(
                "output_dropped_bytes_total", fact.queue, n=fact.count
            ),
            events.LinesDropped: lambda fact: self.count("log_lines_dropped_total", n=fact.count),
        }
        for name in ("notifications_total", "orphans_killed_total", "log_lines_dropped_total", "leader"):
            families[name].at()
        for name in ("loop_lag_seconds", "claim_batch_jobs"):
            families[name].histogram()
        for role in catalog.ROLES:
            families["db_reconnects_total"].at(role)
        for op in catalog.OPERATIONS:
            families["db_operation_seconds"].histogram(op)
            for kind in catalog.ERRORS:
                families["db_errors_total"].at(op, kind)
        for reason in catalog.STOP_REASONS:
            families["job_stop_seconds"].histogram(reason)
        for state in catalog.HOST_STATES:
            families["master_state"].at(state)

    def know(
        self, tasks: Iterable[tuple[str, str]], queues: Iterable[str], schedules: Iterable[str] = ()
    ) -> None:
        """Series at 0 for what the app declares; again after a reload."""
        f = self.families
        for queue in queues:
            if f["workers"].knows(queue, "idle"):
                continue
            for name in ("job_wait_seconds", "worker_start_seconds"):
                f[name].histogram(queue)
            for name, metric in catalog.METRICS.items():
                if metric.labels == ("queue",) and metric.kind != "histogram" and not metric.cluster:
                    f[name].at(queue)
            f["jobs_rescued_total"].at(queue, "host_lost")
            for reason in catalog.EXITS:
                f["worker_exits_total"].at(queue, reason)
            for state in catalog.WORKER_STATES:
                f["workers"].at(queue, state)
        for queue, task in tasks:
            self._attempts.know(queue, task)
        for schedule in schedules:
            for result in catalog.TICK_RESULTS:
                f["schedule_ticks_total"].at(schedule, result)

    def hears(self, kind: type) -> Hearing | None:
        if kind is events.JobStarted:
            return self._attempts.started
        if kind is events.JobEnded:
            return self._attempts.ended
        on = self._on.get(kind)
        return None if on is None else each(on)

    def count(self, name: str, *labels: str, n: float = 1) -> None:
        self.families[name].at(*labels).value += n

    def set(self, name: str, value: float, *labels: str) -> None:
        self.families[name].at(*labels).value = float(value)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type."""
        self._attempts.turn_peaks()
        for name, read in ITSELF.items():
            self.set(name, read())
        openmetrics = exposition.wants_openmetrics(accept)
        every = (*self.families.values(), *self.user.families.values())
        body = exposition.render(every, openmetrics)
        return body, exposition.OPENMETRICS if openmetrics else exposition.TEXT

    # -- processes ---------------------------------------------------------------------------------------------------

    def _worker_died(self, fact: lives.WorkerDied) -> None:
        self.count(
            "worker_exits_total",
            fact.queue,
            str(fact.why) if fact.why in catalog.EXITS else "idle",
        )
        if fact.swept:
            self.count("orphans_killed_total", n=fact.swept)

    def _supervisor_died(self, fact: lives.SupervisorDied) -> None:
        if fact.restart_in is not None:
            self.count("supervisor_restarts_total", fact.queue)

    def _memory(self, fact: sightings.MemorySeen) -> None:
        for name, most in (("worker_memory_bytes", fact.total), ("worker_memory_max_bytes", fact.largest)):
            for queue, value in most.items():
                self.set(name, value, queue)

    # -- the database ------------------------------------------------------------------------------------------------

    def _statement(self, fact: events.StatementRun) -> None:
        self.families["db_operation_seconds"].histogram(fact.op).observe(fact.seconds)
        if fact.error is not None:
            self.count("db_errors_total", fact.op, self._class(fact.error))

    def _class(self, name: str) -> str:
        """The DB-API class of an error: a closed set."""
        if name not in self._classes:
            error = getattr(psycopg.errors, name, getattr(psycopg, name, psycopg.OperationalError))
            lineage = [parent.__name__ for parent in getattr(error, "__mro__", ())]
            self._classes[name] = next(
                (kind for kind in catalog.ERRORS if kind in lineage), "OperationalError"
            )
        return self._classes[name]

    def _claimed(self, fact: events.Claimed) -> None:
        self._observe("claim_batch_jobs", float(fact.count))

    def _duty_done(self, fact: events.DutyDone) -> None:
        self._observe("duty_seconds", fact.seconds, fact.duty)
        self.count("duty_rows_total", fact.duty, n=fact.count)
        self.families["duty_failures_total"].at(fact.duty)

    def _tick(self, fact: events.TickFired) -> None:
        self.count("schedule_ticks_total", fact.schedule, "fired" if fact.job is not None else "skipped")

    # -- what the leader saw -----------------------------------------------------------------------------------------

    def _leader(self, fact: events.LeaderChanged) -> None:
        if not fact.leads:
            for family in self.families.values():
                if family.metric.cluster:
                    family.clear()

    def _queues(self, fact: sightings.QueuesSeen) -> None:
        for name in (
            "queue_jobs",
            "queue_oldest_ready_seconds",
            "queue_paused",
            "queue_limit",
            "queue_throttled",
        ):
            self.families[name].clear()
        for seen in fact.queues:
            for state in catalog.STATES:
                self.count("queue_jobs", seen.queue, state, n=getattr(seen, state))
            oldest = self.families["queue_oldest_ready_seconds"].at(seen.queue)
            oldest.value = max(oldest.value, seen.oldest)
            self.set("queue_paused", seen.paused, seen.queue)
            self.set("queue_throttled", seen.throttled, seen.queue)
            if seen.limit is not None:
                self.set("queue_limit", seen.limit, seen.queue)
        self.set("snapshot_timestamp_seconds", _now())

    def _schedules(self, fact: sightings.SchedulesSeen) -> None:
        last, following = "schedule_last_tick_timestamp_seconds", "schedule_next_tick_timestamp_seconds"
        self.families[last].clear()
        self.families[following].clear()
        for seen in fact.schedules:
            self.know((), (), [seen.schedule])
            if seen.last is not None:
                self.set(last, seen.last, seen.schedule)
            if seen.next is not None:
                self.set(following, seen.next, seen.schedule)

    def _storage(self, fact: sightings.StorageSeen) -> None:
        self.families["table_dead_tuples"].clear()
        self.families["table_bytes"].clear()
        for table in fact.tables:
            self.set("table_dead_tuples", table.dead, table.table)
            self.set("table_bytes", table.size, table.table)
        self.set("oldest_transaction_seconds", fact.oldest)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        self.families[name].histogram(*labels).observe(value if value > 0 else 0.0)


def _what(metric: catalog.Metric) -> str:
    """What there are too many of, when a family is full."""
    if "task" in metric.labels:
        return "job"
    return next((what for what in catalog.CAPPED if what in metric.labels), "queue")


def _counting(cell: Cell) -> Callable[[], None]:
    def count() -> None:
        cell.value += 1

    return count
