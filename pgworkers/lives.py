"""Facts of processes: supervisors and workers, from their start to their death. `events` lists them with all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OfWorker:
    """What facts about a worker begin with."""

    queue: str
    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerForked(OfWorker):
    """Its supervisor made it; it is not ready yet."""


@dataclass(frozen=True, slots=True)
class WorkerReady(OfWorker):
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerDied(OfWorker):
    job: int  # 0: it had none
    status: str
    why: str  # left, threads, while idle, or the verdict
    swept: int
    task: str = ""
    attempt: int = 0
    stuck: tuple[str, ...] = ()  # processes of it that SIGKILL did not end
    foreign: tuple[str, ...] = ()  # processes of it that are another user's and go on


@dataclass(frozen=True, slots=True)
class WorkerBurned(OfWorker):
    """Threads that a job left behind used CPU while there was none: it is replaced."""

    job: int  # the last that it had
    task: str


@dataclass(frozen=True, slots=True)
class WorkerDumped(OfWorker):
    """Somebody wanted to know where it is (SIGUSR2)."""

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
    unused: bool = False  # they had started, and left before they got a job


@dataclass(frozen=True, slots=True)
class OrphansKilled:
    count: int


@dataclass(frozen=True, slots=True)
class FormerHostEnded:
    """Processes of a host whose master was gone were still there when this one started."""

    count: int  # that were killed
    left: int  # that did not end
