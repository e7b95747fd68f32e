"""Every metric, declared once: name, kind, labels and help text.

docs/reference/metrics.md is made from this. A law test checks that dashboards and alerts use exactly these names.

Labels come from closed sets (states, verdicts, reasons), from names that the app declares (queues, tasks, schedules), and
in `build_info` from versions and the setting `label`. Metrics that are cluster-wide are exported by the leader alone, so
that a sum over hosts counts nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.model import LIVE_STATES, JobState, Verdict
from pgworkers.states import ConnectionRole, HostState, TickResult, WorkerExitReason, WorkerState

METRIC_PREFIX = "pgworkers_"

#: A worker is ready for a moment only, and one that is gone is not counted.
WORKER_STATES = tuple(
    state.value for state in WorkerState if state not in (WorkerState.READY, WorkerState.GONE)
)
HOST_STATES = tuple(state.value for state in HostState if state is not HostState.GONE)
STOP_REASONS = tuple(reason.word for reason in StopReason if reason is not StopReason.NONE)
TICK_RESULTS = tuple(result.value for result in TickResult)
CONNECTION_ROLES = tuple(role.value for role in ConnectionRole)
#: How a worker can go: of itself, because of threads that jobs left, without a job, or with one that ended so.
WORKER_EXIT_REASONS = (
    *(reason.value for reason in WorkerExitReason),
    *(
        verdict.value
        for verdict in (
            Verdict.TIMEOUT,
            Verdict.CANCELLED,
            Verdict.MEMORY_LIMIT,
            Verdict.OOM,
            Verdict.CRASH,
            Verdict.EXIT,
            Verdict.INTERRUPTED,
            Verdict.LEASE_LOST,
        )
    ),
)
#: The error classes of DB-API.
DATABASE_ERROR_CLASSES = (
    "OperationalError",
    "InterfaceError",
    "InternalError",
    "ProgrammingError",
    "DataError",
    "IntegrityError",
)
#: Statements that every host sends, and the opening of a connection; others get their series when they are first sent.
DECLARED_OPERATIONS = ("connect", "claim", "finish", "retry", "release", "host_renew")
CAPPED_LABELS = ("job", "queue", "schedule", "op", "duty", "user")
VERDICTS = tuple(verdict.value for verdict in Verdict)
QUEUE_STATES = ("scheduled", "ready", "running")
assert set(QUEUE_STATES) == {
    state.value for state in LIVE_STATES - {JobState.CLAIMED}
}  # those count as ready

_DURATION_BUCKETS = (
    0.001,
    0.005,
    0.02,
    0.1,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    14400.0,
)
_WAIT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
_STATEMENT_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_STOP_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 6.0, 10.0, 11.0, 12.0, 15.0, 30.0, 60.0)
_LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

#: Labels whose values are names, and not from a closed set: these are capped.
UNBOUNDED_LABELS = {"queue", "task", "schedule", "op", "duty"}


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that a master exports."""

    name: str  # without the prefix, except for process_*
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    is_cluster_wide: bool = False

    @property
    def full_name(self) -> str:
        """The name as it is exported."""
        return self.name if self.name.startswith("process_") else METRIC_PREFIX + self.name


COUNTER, GAUGE, HISTOGRAM = MetricKind
_JOB_LABELS = ("queue", "task")
_QUEUE_LABELS = ("queue",)

JOB_METRICS = (
    Metric("jobs_started_total", COUNTER, "Attempts that were given to a worker.", _JOB_LABELS),
    Metric("jobs_finished_total", COUNTER, "Attempts whose end is written, by verdict.", (*_JOB_LABELS, "verdict")),
    Metric("job_duration_seconds", HISTOGRAM, "How long attempts took.", _JOB_LABELS, _DURATION_BUCKETS),
    Metric("job_wait_seconds", HISTOGRAM, "Seconds from the time a job was due until it started.",
           _QUEUE_LABELS, _WAIT_BUCKETS),
    Metric("job_cpu_seconds_total", COUNTER, "CPU seconds of attempts, their children included.", _JOB_LABELS),
    Metric("job_peak_memory_bytes", GAUGE, "Largest peak of the attempts that ended in the last 5 to 10 minutes.",
           _JOB_LABELS),
    Metric("jobs_running", GAUGE, "Attempts that run on this host.", _QUEUE_LABELS),
    Metric("job_oldest_running_seconds", GAUGE, "Age of the oldest attempt that runs here; 0: none.", _QUEUE_LABELS),
    Metric("jobs_rescued_total", COUNTER, "Jobs rescued from lost hosts by this leader.", ("queue", "reason")),
    Metric("leases_lost_total", COUNTER, "Jobs that turned out to belong to another host.", _QUEUE_LABELS),
    Metric("finishes_rejected_total", COUNTER, "Ends refused because the lease was no longer valid.", _QUEUE_LABELS),
    Metric("job_stop_seconds", HISTOGRAM, "Seconds from the stop request until the job was gone.",
           ("reason",), _STOP_BUCKETS),
)  # fmt: skip
QUEUE_METRICS = (
    Metric("queue_jobs", GAUGE, "Jobs by state; counts stop at 100,000.", ("queue", "state"), is_cluster_wide=True),
    Metric("queue_oldest_ready_seconds", GAUGE, "How long the oldest ready job has waited.",
           _QUEUE_LABELS, is_cluster_wide=True),
    Metric("queue_paused", GAUGE, "1 while the queue is paused.", _QUEUE_LABELS, is_cluster_wide=True),
    Metric("queue_limit", GAUGE, "Workers over all hosts; no series: no limit.", _QUEUE_LABELS, is_cluster_wide=True),
    Metric("queue_throttled", GAUGE, "1 while the queue is throttled.", _QUEUE_LABELS, is_cluster_wide=True),
    Metric("snapshot_timestamp_seconds", GAUGE, "When the leader last counted the queues.", is_cluster_wide=True),
)  # fmt: skip
SCHEDULE_METRICS = (
    Metric("schedule_ticks_total", COUNTER, "Ticks: fired, skipped (overlap), missed (passed by) or failed.",
           ("schedule", "result")),
    Metric("schedule_last_tick_timestamp_seconds", GAUGE, "The last tick that was fired.",
           ("schedule",), is_cluster_wide=True),
    Metric("schedule_next_tick_timestamp_seconds", GAUGE, "When the next tick is due, jitter included.", ("schedule",),
           is_cluster_wide=True),
)  # fmt: skip
PROCESS_METRICS = (
    Metric("workers", GAUGE, "Workers by state.", ("queue", "state")),
    Metric("worker_starts_total", COUNTER, "Workers forked.", _QUEUE_LABELS),
    Metric("worker_exits_total", COUNTER, "Workers that exited, by reason.",
           ("queue", "reason")),
    Metric("worker_memory_bytes", GAUGE, "Memory of all workers and what they started; shared pages count once.",
           _QUEUE_LABELS),
    Metric("worker_memory_max_bytes", GAUGE, "Memory of the largest worker.", _QUEUE_LABELS),
    Metric("worker_start_seconds", HISTOGRAM, "From the fork until ready.", _QUEUE_LABELS, _DURATION_BUCKETS),
    Metric("worker_stalled", GAUGE, "Workers whose job has no heartbeat and uses no CPU.", _QUEUE_LABELS),
    Metric("supervisor_restarts_total", COUNTER, "Supervisors that died and were replaced.", _QUEUE_LABELS),
    Metric("orphans_killed_total", COUNTER, "Processes that outlived their worker and were killed."),
    Metric("output_dropped_bytes_total", COUNTER, "Bytes printed by handlers that stderr did not accept in time.",
           _QUEUE_LABELS),
)  # fmt: skip
MASTER_METRICS = (
    Metric("leader", GAUGE, "1 while this host is the leader."),
    Metric("master_state", GAUGE, "1 for the state the master is in.", ("state",)),
    Metric(
        "build_info", GAUGE, "Versions of pgworkers and of the app; the host's label.", ("version", "app_version", "label")
    ),
    Metric("loop_lag_seconds", HISTOGRAM, "How late the master's loop woke up.", (), _LAG_BUCKETS),
    Metric("duty_seconds", HISTOGRAM, "The leader's duties.", ("duty",), _STATEMENT_BUCKETS),
    Metric("duty_rows_total", COUNTER, "Rows that duties touched.", ("duty",)),
    Metric("duty_failures_total", COUNTER, "Duties that failed.", ("duty",)),
    Metric("reports_dropped_total", COUNTER, "Ends of attempts that on_job_end hooks did not get."),
    Metric("log_lines_dropped_total", COUNTER, "Log lines that could not be written."),
    Metric("series_capped_total", COUNTER, "Values counted under `other` because a metric has its maximum number of series.",
           ("what",)),
    Metric("process_cpu_seconds_total", COUNTER, "CPU seconds of the master."),
    Metric("process_resident_memory_bytes", GAUGE, "Resident memory of the master."),
    Metric("process_virtual_memory_bytes", GAUGE, "Address space of the master."),
    Metric("process_start_time_seconds", GAUGE, "When the master started."),
    Metric("process_open_fds", GAUGE, "Descriptors that the master holds."),
    Metric("process_max_fds", GAUGE, "Maximum number of open descriptors."),
)  # fmt: skip
DATABASE_METRICS = (
    Metric("db_operation_seconds", HISTOGRAM, "Control statements, by name.", ("op",), _STATEMENT_BUCKETS),
    Metric("db_errors_total", COUNTER, "Control statements that failed or got no answer.", ("op", "class")),
    Metric("db_reconnects_total", COUNTER, "Connections that came back.", ("role",)),
    Metric("claim_batch_jobs", HISTOGRAM, "Jobs per claim.", (), (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)),
    Metric("notifications_total", COUNTER, "Notifications received."),
    Metric("table_dead_tuples", GAUGE, "Dead rows that vacuum has not removed.", ("table",), is_cluster_wide=True),
    Metric("table_bytes", GAUGE, "Size of a table with its partitions and indexes.", ("table",), is_cluster_wide=True),
    Metric("oldest_transaction_seconds", GAUGE, "Age of the oldest transaction that holds back vacuum.",
           is_cluster_wide=True),
)  # fmt: skip

METRIC_SECTIONS = {
    "Jobs": JOB_METRICS,
    "Queues": QUEUE_METRICS,
    "Schedules": SCHEDULE_METRICS,
    "Processes": PROCESS_METRICS,
    "Master": MASTER_METRICS,
    "Database": DATABASE_METRICS,
}
METRICS = {metric.name: metric for section in METRIC_SECTIONS.values() for metric in section}
