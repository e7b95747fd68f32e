"""The changes of a job that a watcher sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pgworkers.job.model import TERMINAL_STATES

if TYPE_CHECKING:
    from pgworkers.job.queries import JobStatus, JobView

EventKind = Literal["state", "progress", "end"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """What `job.watch()` yields: one change of a job. The first event is the state in which the job was found.

    `kind` is "state", "progress" or "end". Each event has all that was known at its moment, and "end" is the last one.
    """

    kind: EventKind
    job_id: int
    state: str  #: as `job.state`
    attempt: int  #: 0 before the first attempt
    progress: dict[str, Any] | None  #: as `job.progress`
    verdict: str | None = None  #: why the last attempt ended; only at the end
    error: str | None = None  #: the error of the last failed attempt, in one line

    @property
    def fraction(self) -> float | None:
        """The progress from 0.0 to 1.0. None if the handler reported no total."""
        return progress_fraction(self.progress)


def progress_fraction(progress: dict[str, Any] | None) -> float | None:
    """`done` / `total` of a progress, from 0.0 to 1.0. None if it has no total."""
    if not isinstance(progress, dict):
        return None
    done, total = progress.get("done"), progress.get("total")
    if not isinstance(done, (int, float)) or not isinstance(total, (int, float)) or not total > 0:
        return None
    return min(1.0, max(0.0, done / total))


def next_event(before: WatchEvent | None, now: JobStatus | JobView) -> WatchEvent | None:
    """The event that a look at a job makes, after the event that its watcher saw last. None: nothing has changed."""
    progress = now.progress if isinstance(now.progress, dict) else None
    kind: EventKind
    if now.state in TERMINAL_STATES:
        kind = "end"
    elif before is None or (before.state, before.attempt) != (str(now.state), now.attempt):
        kind = "state"
    elif before.progress != progress:
        kind = "progress"
    else:
        return None
    return WatchEvent(
        kind=kind,
        job_id=now.id,
        state=str(now.state),
        attempt=now.attempt,
        progress=progress,
        verdict=now.verdict,
        error=now.error,
    )
