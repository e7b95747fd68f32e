"""The facts. Each is stated once, in the past tense; logs, metrics and tests listen to them.

`Facts.tell` never raises and never waits: a listener that fails is logged and left out for that fact, because a
fact must not delay or break the job it is about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pgworkers.sightings import HandlerMeasured, LoopWoke, MemorySeen, QueuesSeen, SchedulesSeen, StorageSeen


@dataclass(frozen=True, slots=True)
class OfJob:
    """What facts about a job begin with."""

    job: int
    lease: int
    queue: str
    task: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStarted(OfJob):
    waited: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """An attempt ended and its end is written; `state` is where the job is now."""

    job: int
    lease: int
    queue: str
    task: str
    args: str
    attempt: int
    max_attempts: int
    verdict: str
    state: str
    duration: float
    cpu: float
    peak_rss: int
    error: str | None
    again_in: float | None


@dataclass(frozen=True, slots=True)
class JobsReleased:
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class LeaseLost(OfJob):
    """Another host owns the job now; whatever this host still says about it is refused."""

    running: bool


@dataclass(frozen=True, slots=True)
class FinishRejected(OfJob):
    """The end of an execution was refused: its lease is no longer valid."""


@dataclass(frozen=True, slots=True)
class JobRescued(OfJob):
    state: str


@dataclass(frozen=True, slots=True)
class StopWished(OfJob):
    reason: str


@dataclass(frozen=True, slots=True)
class JobStopped:
    """A job that should stop is gone; `seconds` after the wish."""

    job: int
    lease: int
    queue: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobStalled(OfJob):
    stalled: bool


@dataclass(frozen=True, slots=True)
class WorkerForked:
    queue: str
    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    queue: str
    slot: int
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerDied:
    queue: str
    slot: int
    pid: int
    job: int  # 0: it had none
    status: str
    why: str  # recycled, drained, or the verdict
    swept: int
    task: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class WorkerDumped:
    """Somebody wanted to know where it is (SIGUSR2)."""

    queue: str
    slot: int
    pid: int
    job: int  # 0: it has none
    task: str
    attempt: int
    stack: str


@dataclass(frozen=True, slots=True)
class SupervisorStarted:
    queue: str
    pid: int


@dataclass(frozen=True, slots=True)
class SupervisorBooted:
    queue: str
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SupervisorFailed:
    """It could not import the app, or not fork."""

    queue: str
    error: str
    traceback: str


@dataclass(frozen=True, slots=True)
class SupervisorDied:
    queue: str
    pid: int
    status: str
    restart_in: float | None


@dataclass(frozen=True, slots=True)
class SupervisorSilent:
    """It is alive and its loop does not go round: stopped, or starved."""

    queue: str
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkersResting:
    queue: str
    seconds: float
    deaths: int


@dataclass(frozen=True, slots=True)
class OrphansKilled:
    count: int


@dataclass(frozen=True, slots=True)
class DatabaseLost:
    role: str
    error: str


@dataclass(frozen=True, slots=True)
class DatabaseBack:
    role: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StatementRun:
    op: str
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Claimed:
    count: int


@dataclass(frozen=True, slots=True)
class Notified:
    payload: str


@dataclass(frozen=True, slots=True)
class DutyDone:
    duty: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DutyFailed:
    duty: str
    error: str
    cut: bool = False  # only because the database did not answer, which is told by itself


@dataclass(frozen=True, slots=True)
class TickFired:
    """A schedule's tick has its row. `job` is None when none was made, for `reason`; `at` is Unix time, by the calendar."""

    schedule: str
    scope: str
    at: float
    job: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class TicksSkipped:
    """Missed ticks that the schedule's policy passed by."""

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
class ReloadRefused:
    """Newer code does not start; the old one goes on."""

    why: str


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    leads: bool
    why: str


@dataclass(frozen=True, slots=True)
class HostChanged:
    """running, draining, stopping, gone."""

    state: str
    why: str


@dataclass(frozen=True, slots=True)
class LinesDropped:
    """Log lines that nobody could be given: the output is not read, is closed, or its disk is full."""

    count: int
    why: str


Fact = (
    JobStarted | JobEnded | JobsReleased | LeaseLost | FinishRejected | JobRescued | StopWished | JobStopped | JobStalled
    | WorkerForked | WorkerReady | WorkerDied | WorkerDumped
    | SupervisorStarted | SupervisorBooted | SupervisorFailed | SupervisorDied | SupervisorSilent
    | WorkersResting | OrphansKilled
    | DatabaseLost | DatabaseBack | StatementRun | Claimed | Notified
    | TickFired | TicksSkipped | ScheduleFailed
    | QueuesSeen | SchedulesSeen | StorageSeen | MemorySeen | LoopWoke | HandlerMeasured
    | DutyDone | DutyFailed | ReloadRefused | LeaderChanged | HostChanged | LinesDropped
)  # fmt: skip

Listener = Callable[[Fact], None]


class Facts:
    """Where facts are told and who listens."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Listener, tuple[type, ...]]] = []
        self._of: dict[type, list[Listener]] = {}  # who hears a kind of fact

    def listen(self, listener: Listener, *kinds: type) -> None:
        """Hear these kinds of facts; without any, all."""
        self._listeners.append((listener, kinds))
        self._of.clear()

    def tell(self, fact: Fact) -> None:
        kind = type(fact)
        hearing = self._of.get(kind)
        if hearing is None:
            hearing = [listener for listener, kinds in self._listeners if not kinds or kind in kinds]
            self._of[kind] = hearing
        for listener in hearing:
            try:
                listener(fact)
            except Exception:
                logging.getLogger("pgworkers").exception("a listener failed at %s", type(fact).__name__)
