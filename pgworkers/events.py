"""The facts. Each is stated once, in the past tense; logs, metrics and tests listen to them.
Those of processes stand in `lives`, measurements in `sightings`; `Fact` is any of them. Where they are told: `facts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pgworkers.lives import (
    FormerHostEnded,
    OrphansKilled,
    SupervisorBooted,
    SupervisorDied,
    SupervisorFailed,
    SupervisorSilent,
    SupervisorStarted,
    WorkerBurned,
    WorkerDied,
    WorkerDumped,
    WorkerForked,
    WorkerReady,
    WorkersResting,
)
from pgworkers.sightings import HandlerMeasured, LoopWoke, MemorySeen, QueuesSeen, SchedulesSeen, StorageSeen


class OfJob(msgspec.Struct, frozen=True, gc=False):
    """What facts about a job begin with. Structs: a frozen dataclass costs ten times as much, for every job."""

    job: int
    lease: int
    queue: str
    task: str
    attempt: int


class JobStarted(OfJob, frozen=True, gc=False):
    waited: float


class JobEnded(msgspec.Struct, frozen=True, gc=False):
    """An attempt ended and its end is written; `state` is where the job is now."""

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
    again_in: float | None


@dataclass(frozen=True, slots=True)
class JobsReleased:
    count: int
    why: str


class LeaseLost(OfJob, frozen=True, gc=False):
    """Another host owns the job now; whatever this host still says about it is refused.

    `rescued`: the leader took it back, because this host had not renewed in time.
    """

    running: bool
    rescued: bool = False


class FinishRejected(OfJob, frozen=True, gc=False):
    """The end of an execution was refused: its lease is no longer valid."""


class EndRefused(OfJob, frozen=True, gc=False):
    """The database refuses the end of an execution, whatever is left out of it: a trigger of the user's, say."""

    error: str
    again_in: float


class JobRescued(OfJob, frozen=True, gc=False):
    state: str


class StopWished(OfJob, frozen=True, gc=False):
    reason: str


class DeadlineMoved(OfJob, frozen=True, gc=False):
    """An operator moved the deadline of a job that this host has. `seconds`: from now until the new one; None: removed."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class JobStopped:
    """A job that should stop is gone; `seconds` after the wish."""

    job: int
    lease: int
    queue: str
    reason: str
    seconds: float


class JobStalled(OfJob, frozen=True, gc=False):
    stalled: bool


@dataclass(frozen=True, slots=True)
class DatabaseLost:
    role: str
    error: str


@dataclass(frozen=True, slots=True)
class DatabaseBack:
    role: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DatabaseSlow:
    """Ends could not be written within the time limit of a statement. Told once, until full batches are fast again."""

    jobs: int
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
class ClaimTooSlow:
    """A claim of these queues took longer than a statement may. The server answers; other statements may be quick."""

    queues: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class JobsParked:
    """Jobs of a task that this host does not know made its claims slow. It moves them out of the way; `done`: all."""

    queue: str
    task: str
    jobs: int
    done: bool


@dataclass(frozen=True, slots=True)
class TaskUnknown:
    """Jobs of a task that no host of the queue has wait; told once by a leader that has an idle worker in their queue."""

    queue: str
    task: str
    jobs: int


@dataclass(frozen=True, slots=True)
class ReloadRefused:
    """Newer code does not start; the old one goes on."""

    why: str


@dataclass(frozen=True, slots=True)
class QueueThrottled:
    """A queue cools down: none of its jobs is claimed for `seconds`. `throttles`: how many in a row."""

    queue: str
    seconds: float
    throttles: int


@dataclass(frozen=True, slots=True)
class Purged:
    """A duty deleted what is past its retention. `what`: finished jobs, ticks, a partition by its name."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class LeaderLockHeld:
    """A session that is no host's holds the leader's advisory lock. Duties go on; the host leads by its term."""

    pid: int
    user: str
    application: str


@dataclass(frozen=True, slots=True)
class LeaderLockFree:
    """The session that held the leader's lock, and was no host's, has let it go."""

    pid: int


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


@dataclass(frozen=True, slots=True)
class OutputDropped:
    """Bytes that handlers printed and that were not shown: stderr did not take them in time."""

    queue: str
    count: int


Fact = (
    JobStarted | JobEnded | JobsReleased | LeaseLost | FinishRejected | EndRefused
    | JobRescued | StopWished | DeadlineMoved | JobStopped | JobStalled
    | WorkerForked | WorkerReady | WorkerBurned | WorkerDied | WorkerDumped
    | SupervisorStarted | SupervisorBooted | SupervisorFailed | SupervisorDied | SupervisorSilent
    | WorkersResting | OrphansKilled | FormerHostEnded
    | DatabaseLost | DatabaseBack | DatabaseSlow | StatementRun | Claimed | Notified
    | QueueThrottled | Purged | TickFired | TicksSkipped | ScheduleFailed | TaskUnknown
    | ClaimTooSlow | JobsParked
    | QueuesSeen | SchedulesSeen | StorageSeen | MemorySeen | LoopWoke | HandlerMeasured
    | DutyDone | DutyFailed | ReloadRefused | LeaderChanged | LeaderLockHeld | LeaderLockFree
    | HostChanged | LinesDropped | OutputDropped
)  # fmt: skip
