"""Facts as Prometheus metrics: counters in the memory of the master, gauges read from it at scrape time.

Series exist at 0 for every known queue and task from the start; labels come from closed sets (queues and tasks of
the app, verdicts, operations), never from a pid, a job id or a text.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from pgworkers import events
from pgworkers.job.state import Verdict

_DURATIONS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400)
_WAITS = (0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200)
_STATEMENTS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
WORKER_STATES = ("booting", "idle", "busy", "suspended", "leaving")
HOST_STATES = ("starting", "running", "draining", "stopping")


class Metrics:
    def __init__(
        self, tasks: Iterable[tuple[str, str]], queues: Iterable[str], version: str, app_version: str
    ) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        job = ("queue", "task")
        self._started = Counter("pgworkers_jobs_started", "Attempts started.", job, registry=r)
        self._finished = Counter(
            "pgworkers_jobs_finished", "Attempts ended, by verdict.", (*job, "verdict"), registry=r
        )
        self._duration = Histogram(
            "pgworkers_job_duration_seconds", "Duration of attempts.", job, buckets=_DURATIONS, registry=r
        )
        self._wait = Histogram(
            "pgworkers_job_wait_seconds", "From due to started.", ("queue",), buckets=_WAITS, registry=r
        )
        self._cpu = Counter("pgworkers_job_cpu_seconds", "CPU seconds of attempts.", job, registry=r)
        self._peak = Gauge(
            "pgworkers_job_peak_memory_bytes", "Peak RSS of the last attempt.", job, registry=r
        )
        self._rescued = Counter(
            "pgworkers_jobs_rescued", "Jobs taken back from lost hosts.", ("queue", "reason"), registry=r
        )
        self._lost = Counter("pgworkers_leases_lost", "Leases this host lost.", ("queue",), registry=r)
        self._rejected = Counter(
            "pgworkers_finishes_rejected", "Ends refused by the lease guard.", ("queue",), registry=r
        )
        self._forks = Counter("pgworkers_worker_starts", "Workers forked.", ("queue",), registry=r)
        self._exits = Counter("pgworkers_worker_exits", "Workers gone.", ("queue", "reason"), registry=r)
        self._restarts = Counter(
            "pgworkers_supervisor_restarts",
            "Supervisors that died and were replaced.",
            ("queue",),
            registry=r,
        )
        self._orphans = Counter(
            "pgworkers_orphans_killed", "Processes that outlived their worker and were killed.", registry=r
        )
        self._statements = Histogram(
            "pgworkers_db_operation_seconds", "Control statements.", ("op",), buckets=_STATEMENTS, registry=r
        )
        self._errors = Counter(
            "pgworkers_db_errors", "Control statements that failed.", ("op", "class"), registry=r
        )
        self._reconnects = Counter(
            "pgworkers_db_reconnects", "Connections that came back.", ("role",), registry=r
        )
        self._batch = Histogram(
            "pgworkers_claim_batch_jobs",
            "Jobs per claim.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200),
            registry=r,
        )
        self._duties = Histogram(
            "pgworkers_duty_seconds", "The leader's duties.", ("duty",), buckets=_STATEMENTS, registry=r
        )
        self._duty_rows = Counter("pgworkers_duty_rows", "Rows that duties touched.", ("duty",), registry=r)
        self._duty_failures = Counter("pgworkers_duty_failures", "Duties that failed.", ("duty",), registry=r)
        self._notices = Counter("pgworkers_notifications", "Notifications received.", registry=r)
        self.workers = Gauge("pgworkers_workers", "Workers by state.", ("queue", "state"), registry=r)
        self.running = Gauge("pgworkers_jobs_running", "Jobs running on this host.", ("queue",), registry=r)
        self.oldest = Gauge(
            "pgworkers_job_oldest_running_seconds",
            "Age of the oldest running attempt.",
            ("queue",),
            registry=r,
        )
        self.leader = Gauge(
            "pgworkers_leader", "1 while this host performs the cluster's duties.", registry=r
        )
        self.state = Gauge(
            "pgworkers_master_state", "1 for the state the master is in.", ("state",), registry=r
        )
        info = Gauge("pgworkers_build_info", "Versions.", ("version", "app_version"), registry=r)
        info.labels(version, app_version).set(1)
        ProcessCollector(registry=r)
        for queue in queues:
            for metric in (
                self._wait,
                self._lost,
                self._rejected,
                self._forks,
                self._restarts,
                self.running,
                self.oldest,
            ):
                metric.labels(queue)
            self._rescued.labels(queue, "host_lost")
            for state in WORKER_STATES:
                self.workers.labels(queue, state)
        for queue, task in tasks:
            for per_task in (self._started, self._duration, self._cpu, self._peak):
                per_task.labels(queue, task)
            for verdict in Verdict:
                self._finished.labels(queue, task, verdict.value)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def __call__(self, fact: events.Fact) -> None:
        match fact:
            case events.StatementRun():
                self._statements.labels(fact.op).observe(fact.seconds)
                if fact.error is not None:
                    self._errors.labels(fact.op, fact.error).inc()
            case events.JobStarted():
                self._started.labels(fact.queue, fact.task).inc()
                self._wait.labels(fact.queue).observe(max(0.0, fact.waited))
            case events.JobEnded():
                self._finished.labels(fact.queue, fact.task, fact.verdict).inc()
                self._duration.labels(fact.queue, fact.task).observe(fact.duration)
                self._cpu.labels(fact.queue, fact.task).inc(max(0.0, fact.cpu))
                self._peak.labels(fact.queue, fact.task).set(fact.peak_rss)
            case events.Claimed():
                self._batch.observe(fact.count)
            case events.Notified():
                self._notices.inc()
            case events.JobRescued():
                self._rescued.labels(fact.queue, "host_lost").inc()
            case events.LeaseLost():
                self._lost.labels(fact.queue).inc()
            case events.FinishRejected():
                self._rejected.labels(fact.queue).inc()
            case events.WorkerForked():
                self._forks.labels(fact.queue).inc()
            case events.WorkerDied():
                self._exits.labels(fact.queue, fact.why).inc()
                if fact.swept:
                    self._orphans.inc(fact.swept)
            case events.SupervisorDied(restart_in=float()):
                self._restarts.labels(fact.queue).inc()
            case events.OrphansKilled():
                self._orphans.inc(fact.count)
            case events.DutyDone():
                self._duties.labels(fact.duty).observe(fact.seconds)
                self._duty_rows.labels(fact.duty).inc(fact.count)
            case events.DutyFailed():
                self._duty_failures.labels(fact.duty).inc()
            case events.DatabaseBack():
                self._reconnects.labels(fact.role).inc()
            case _:
                pass
