"""Every event of a host, and the bus that passes them to listeners: the log, metrics, tracing and tests.

An event is something that happened, named in the past tense. First come the events of jobs and of the host, then those of
its processes, then measurements, which are for gauges and are not logged. `Event` is any of them.

`EventBus.emit` never raises and never waits. A listener that fails is logged and skipped for that event, because an event
must not delay or break the job that it is about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import msgspec


class JobEvent(msgspec.Struct, frozen=True, gc=False):
    """The first fields of events about a job. A struct, because these are made for every job."""

    job: int
    lease: int
    queue: str
    task: str
    attempt: int


class AttemptStarted(JobEvent, frozen=True, gc=False):
    waited_seconds: float


class AttemptEnded(msgspec.Struct, frozen=True, gc=False):
    """An attempt ended and its result is written. `state`: of the job now."""

    job: int
    lease: int
    queue: str
    task: str
    args: str  # as JSON; "": not to be shown (log_args)
    attempt: int
    max_attempts: int
    verdict: str
    state: str
    duration: float
    cpu: float
    peak_rss: int
    error: str | None
    retry_in: float | None


@dataclass(frozen=True, slots=True)
class JobsReleased:
    count: int
    why: str


class LeaseLost(JobEvent, frozen=True, gc=False):
    """Another host owns the job now; writes of this host are refused.

    `is_rescued`: the leader rescued it, because this host had not renewed in time.
    """

    is_running: bool
    is_rescued: bool = False


class FinishRejected(JobEvent, frozen=True, gc=False):
    """The result of an execution was refused: its lease is no longer valid."""


class FinishFailed(JobEvent, frozen=True, gc=False):
    """The database refuses the result of an execution, even without its texts: by a trigger of the user, for example."""

    error: str
    retry_in: float


@dataclass(frozen=True, slots=True)
class ProgressRefused:
    """The database refuses progress or checkpoint of a running job. It is sent again after `retry_in` seconds."""

    job: int
    lease: int
    error: str
    retry_in: float


class JobRescued(JobEvent, frozen=True, gc=False):
    state: str
    error: str = ""
    max_attempts: int = 0


class StopRequested(JobEvent, frozen=True, gc=False):
    reason: str


class DeadlineMoved(JobEvent, frozen=True, gc=False):
    """An operator moved the deadline of a job that this host has. `seconds`: from now until the new one; None: removed."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class StopCompleted:
    """A job has stopped, `seconds` after the stop request."""

    job: int
    lease: int
    queue: str
    reason: str
    seconds: float


class JobStallChanged(JobEvent, frozen=True, gc=False):
    is_stalled: bool


@dataclass(frozen=True, slots=True)
class DatabaseConnectionLost:
    role: str
    error: str


@dataclass(frozen=True, slots=True)
class DatabaseConnectionRestored:
    role: str
    seconds: float


@dataclass(frozen=True, slots=True)
class FinishTooSlow:
    """Results could not be written within the statement timeout. Emitted once, until full batches are fast again."""

    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StatementExecuted:
    statement: str
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class JobsClaimed:
    count: int


@dataclass(frozen=True, slots=True)
class NotificationReceived:
    payload: str


@dataclass(frozen=True, slots=True)
class DutyPerformed:
    duty: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DutyFailed:
    duty: str
    error: str
    is_connection_lost: bool = False  # because the database did not answer, for which there is another event


@dataclass(frozen=True, slots=True)
class TickFired:
    """A schedule's tick has its row. `job` is None when none was made, for `reason`; `at` is Unix time, by the calendar."""

    schedule: str
    scope: str
    at: float
    job: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class TicksMissed:
    """Missed ticks that the schedule's policy skipped."""

    schedule: str
    scope: str
    count: int


@dataclass(frozen=True, slots=True)
class ScheduleFailed:
    """A schedule cannot fire; the others go on."""

    schedule: str
    scope: str
    error: str


@dataclass(frozen=True, slots=True)
class ClaimTooSlow:
    """A claim of these queues took longer than a statement may. The server answers; other statements may be quick."""

    queues: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class JobsParked:
    """Jobs of a task that this host does not know made its claims slow. It moves them out of the way; `is_done`: all."""

    queue: str
    task: str
    jobs: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class UnknownTaskFound:
    """Jobs wait whose task no host of the queue knows. Emitted once, by a leader with an idle worker in the queue."""

    queue: str
    task: str
    jobs: int


@dataclass(frozen=True, slots=True)
class ReloadRefused:
    """Newer code does not start; the old one goes on."""

    why: str


@dataclass(frozen=True, slots=True)
class QueueThrottled:
    """A queue cools down: none of its jobs is claimed for `seconds`. `throttle_level`: how many in a row."""

    queue: str
    seconds: float
    throttle_level: int


@dataclass(frozen=True, slots=True)
class RowsPurged:
    """A duty deleted what is past its retention. `what`: finished jobs, ticks, a partition by its name."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class LeaderLockTaken:
    """A session that belongs to no host holds the leader's advisory lock. Duties continue; the host leads by its term."""

    pid: int
    user: str
    application: str


@dataclass(frozen=True, slots=True)
class LeaderLockFreed:
    """The session that held the leader's lock and belonged to no host has released it."""

    pid: int


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    is_leader: bool
    why: str


@dataclass(frozen=True, slots=True)
class HostStateChanged:
    """The state of the host changed, or there is something to log about it in its present state."""

    state: str
    why: str


@dataclass(frozen=True, slots=True)
class LogLinesDropped:
    """Log lines that could not be written: the output is not read, is closed, or its disk is full."""

    count: int
    why: str


@dataclass(frozen=True, slots=True)
class OutputDropped:
    """Bytes that handlers printed and that were not shown: stderr did not take them in time."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class FormerHostProcessesKilled:
    """Processes of a host whose master was gone were still there when this one started."""

    count: int  # that were killed
    remaining: int  # that did not end


@dataclass(frozen=True, slots=True)
class HandlerMetricsReceived:
    """Values that a handler set by `ctx.metrics`, as its worker sent them."""

    task: str
    body: bytes


@dataclass(frozen=True, slots=True)
class LoopLagMeasured:
    """The master's event loop woke up this late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ReporterDied:
    """The process that runs `on_job_end` hooks died, hung or could not import the app. `why`: empty if it is not known."""

    pid: int
    status: str
    why: str
    restart_in: float


@dataclass(frozen=True, slots=True)
class ReportsDropped:
    """Ends of attempts that no `on_job_end` hook got: the reporter was too slow, hung or died."""

    count: int


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """Bytes that the workers of each queue use with their children, all together and the largest alone."""

    total_bytes: dict[str, int]
    largest_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class OrphansKilled:
    count: int


@dataclass(frozen=True, slots=True)
class QueuesMeasured:
    """The leader's snapshot of all queues. Only the leader emits it, so that sums over hosts count nothing twice."""

    queues: list[QueueDepth]


@dataclass(frozen=True, slots=True)
class SchedulesMeasured:
    """The leader's snapshot of all schedules."""

    schedules: list[ScheduleTimes]


@dataclass(frozen=True, slots=True)
class StorageMeasured:
    """The leader's snapshot of the tables, and of the oldest transaction that holds back vacuum.

    `oldest_transaction_holder` is empty if there is none.
    """

    tables: list[TableSize]
    oldest_transaction_seconds: float
    oldest_transaction_holder: str


@dataclass(frozen=True, slots=True)
class SupervisorBootFailed:
    """A supervisor could not import the app, or could not fork."""

    queue: str
    error: str
    traceback: str


@dataclass(frozen=True, slots=True)
class SupervisorBooted:
    queue: str
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SupervisorDied:
    queue: str
    pid: int
    status: str
    restart_in: float | None


@dataclass(frozen=True, slots=True)
class SupervisorStarted:
    queue: str
    pid: int


@dataclass(frozen=True, slots=True)
class SupervisorUnresponsive:
    """A supervisor is alive and sends nothing: it is stopped, or starved."""

    queue: str
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """The first fields of events about a worker."""

    queue: str
    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerDied(WorkerEvent):
    job: int  # 0: it had none
    status: str
    reason: str  # a WorkerExitReason, or the verdict of its job
    orphans_killed: int
    task: str = ""
    attempt: int = 0
    unkillable: tuple[str, ...] = ()  # processes of it that SIGKILL did not end
    foreign: tuple[str, ...] = ()  # processes of it that are another user's and go on


@dataclass(frozen=True, slots=True)
class WorkerForked(WorkerEvent):
    """Its supervisor made it; it is not ready yet."""


@dataclass(frozen=True, slots=True)
class WorkerLeakedThreads(WorkerEvent):
    """Threads that a job left behind used CPU while there was none: it is replaced."""

    job: int  # the last that it had
    task: str


@dataclass(frozen=True, slots=True)
class WorkerReady(WorkerEvent):
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerRestartDelayed:
    queue: str
    seconds: float
    deaths: int
    were_ready: bool = False  # they had started, and left before they got a job


@dataclass(frozen=True, slots=True)
class WorkerStackDumped(WorkerEvent):
    """The stack of a worker, as requested by SIGUSR2."""

    job: int  # 0: it has none
    task: str
    attempt: int
    stack: str


Event = (
    AttemptStarted | AttemptEnded | JobsReleased | LeaseLost | FinishRejected | FinishFailed
    | ProgressRefused
    | JobRescued | StopRequested | DeadlineMoved | StopCompleted | JobStallChanged
    | WorkerForked | WorkerReady | WorkerLeakedThreads | WorkerDied | WorkerStackDumped
    | SupervisorStarted | SupervisorBooted | SupervisorBootFailed | SupervisorDied | SupervisorUnresponsive
    | WorkerRestartDelayed | OrphansKilled | FormerHostProcessesKilled
    | DatabaseConnectionLost | DatabaseConnectionRestored | FinishTooSlow | StatementExecuted
    | JobsClaimed | NotificationReceived
    | QueueThrottled | RowsPurged | TickFired | TicksMissed | ScheduleFailed | UnknownTaskFound
    | ClaimTooSlow | JobsParked
    | QueuesMeasured | SchedulesMeasured | StorageMeasured | MemoryMeasured | LoopLagMeasured | HandlerMetricsReceived
    | DutyPerformed | DutyFailed | ReloadRefused | LeadershipChanged | LeaderLockTaken | LeaderLockFreed
    | HostStateChanged | LogLinesDropped | OutputDropped | ReporterDied | ReportsDropped
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One queue in a snapshot. Counts are capped; `limit` is None when there is none."""

    queue: str
    ready: int
    scheduled: int
    running: int
    oldest: float  # seconds that the oldest ready job has waited; 0 when nothing is ready
    is_paused: bool
    limit: int | None  # workers over all hosts
    is_throttled: bool
    is_exact: bool = True  # False: the table `host` was locked, so what hosts claimed ahead counts as running


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """One schedule (all its scopes) in a snapshot: Unix times of its last tick and of the next; None: there is none."""

    schedule: str
    last_tick_at: float | None
    next_tick_at: float | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table, its partitions and indexes included."""

    table: str
    dead_rows: int
    total_bytes: int  # bytes


MEASUREMENTS = (
    QueuesMeasured,
    SchedulesMeasured,
    StorageMeasured,
    MemoryMeasured,
    LoopLagMeasured,
    HandlerMetricsReceived,
)

EventHandler = Callable[[Any], None]
#: Gets events of one type that were emitted together. It need not consume all of them.
BatchHandler = Callable[[Iterator[Any]], None]


class EventBus:
    """Passes events to their listeners.

    A listener that treats each kind in its own way has a method `handler_for(kind)`, which returns the handler of that kind,
    or None. It is called once for each kind. The handler gets many events at a time, so that events of jobs cost neither
    a lookup nor a call each.
    """

    def __init__(self) -> None:
        self._subscriptions: list[tuple[EventHandler, tuple[type, ...]]] = []
        self._handlers: dict[type, list[BatchHandler]] = {}  # by type

    def subscribe(self, listener: EventHandler, *kinds: type) -> None:
        """Call `listener` for events of these types; without any, for all."""
        self._subscriptions.append((listener, kinds))
        self._handlers.clear()

    def emit(self, event: Event) -> None:
        self.emit_all((event,))

    def emit_all(self, events: Sequence[Event]) -> None:
        """Emit events of one type, in their order."""
        if not events:
            return
        kind = type(events[0])
        handlers = self._handlers.get(kind)
        if handlers is None:
            handlers = self._handlers[kind] = self._handlers_of(kind)
        for handle in handlers:
            left = iter(events)
            while before := length_hint(left):
                try:
                    handle(left)
                    break
                except Exception:
                    logging.getLogger("pgworkers").exception("a listener failed at %s", kind.__name__)
                    if length_hint(left) == before:
                        next(left)  # it failed before it took one

    def _handlers_of(self, kind: type) -> list[BatchHandler]:
        found: list[BatchHandler] = []
        for listener, kinds in self._subscriptions:
            if not kinds or kind in kinds:
                chosen = listener.handler_for(kind) if hasattr(listener, "handler_for") else each(listener)
                if chosen is not None:
                    found.append(chosen)
        return found


class ByKind:
    """A listener with a handler for each type, which gets many events at a time."""

    def handler_for(self, kind: type) -> BatchHandler | None:
        raise NotImplementedError

    def __call__(self, event: Event) -> None:
        handle = self.handler_for(type(event))
        if handle is not None:
            handle(iter((event,)))


def each(listener: EventHandler) -> BatchHandler:
    """Make a batch handler of a listener that takes one event at a time."""

    def handle(events: Iterator[Any]) -> None:
        for event in events:
            listener(event)

    return handle
