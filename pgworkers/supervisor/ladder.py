"""Which rung of the stop ladder is due. Pure: numbers in, one action out.

ask -> (ask_grace) -> raise -> (raise_grace) -> dump -> kill. A stop request belongs to one job *and lease*. It does nothing
while the worker has another job, and is over as soon as the handler has ended. An operator's kill begins at the dump: an
operator who wants a process to be gone does not want its handler to be asked, nor the next job to run in that process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pgworkers.ipc.scoreboard import StopReason

#: How long a dump may take before the kill comes anyway. Its checks are counted as well as timed, because on a starved
#: machine the worker may not have been scheduled either.
DUMP_TIMEOUT_SECONDS = 0.2
MIN_DUMP_CHECKS = 20


class Rung(StrEnum):
    ASK = "ask"
    RAISE = "raise"
    DUMP = "dump"
    KILL = "kill"


class SlotView(NamedTuple):
    """What the supervisor sees of the worker at one moment."""

    job: int
    lease: int
    is_running: bool  # the handler has the process
    has_dumped: bool = False  # the dump has been written


@dataclass(slots=True, kw_only=True)
class StopRequest:
    """A request to stop one job and lease, and how far it has climbed.

    Times are seconds of CLOCK_BOOTTIME.
    """

    job: int
    lease: int
    reason: StopReason
    requested_at: float
    ask_grace: float
    raise_grace: float
    was_running: bool = False  # the worker was seen running this job
    rung_times: dict[Rung, float] = field(default_factory=dict)
    dump_checks: int = 0  # since the dump
    is_kill: bool = False  # a kill: neither ask nor raise

    def shorten(self, ask_grace: float, raise_grace: float, *, is_kill: bool = False) -> None:
        """A second request for the same job: the reason stays, the graces can only shrink."""
        self.ask_grace = min(self.ask_grace, ask_grace)
        self.raise_grace = min(self.raise_grace, raise_grace)
        self.is_kill = self.is_kill or is_kill

    def rungs_taken(self, *, was_raised: bool) -> list[tuple[str, float]]:
        """Each rung and its seconds after the request.

        `was_raised`: JobStopped was raised, not only its signal sent.
        """
        return [
            (
                "signal" if rung is Rung.RAISE and not was_raised else str(rung),
                round(max(0.0, at - self.requested_at), 3),
            )
            for rung, at in self.rung_times.items()
        ]

    def next_rung_at(self) -> float | None:
        """When the next rung may be due; None: not by time."""
        if not self.was_running:
            return None
        if Rung.DUMP in self.rung_times:
            return None  # the dump file is polled
        if self.is_kill:
            return self.requested_at
        if Rung.RAISE in self.rung_times:
            return self.rung_times[Rung.RAISE] + self.raise_grace
        return (
            self.rung_times[Rung.ASK] + self.ask_grace if Rung.ASK in self.rung_times else self.requested_at
        )


def applies_to(request: StopRequest, seen: SlotView) -> bool:
    return seen.is_running and (seen.job, seen.lease) == (request.job, request.lease)


def is_over(request: StopRequest, seen: SlotView) -> bool:
    """True if the worker was seen running this job and no longer runs it.

    A request whose job was never seen here expires in stopper.py.
    """
    return request.was_running and not applies_to(request, seen)


def next_rung(now: float, request: StopRequest, seen: SlotView) -> Rung | None:
    """The rung to climb now; call again after it was noted in `request.rung_times`."""
    if not applies_to(request, seen) or Rung.KILL in request.rung_times:
        return None
    if Rung.DUMP not in request.rung_times:
        return Rung.DUMP if request.is_kill else _before_dump(now, request)
    late = (
        now >= request.rung_times[Rung.DUMP] + DUMP_TIMEOUT_SECONDS and request.dump_checks >= MIN_DUMP_CHECKS
    )
    return Rung.KILL if seen.has_dumped or late else None


def _before_dump(now: float, request: StopRequest) -> Rung | None:
    if Rung.ASK not in request.rung_times:
        return Rung.ASK
    if Rung.RAISE not in request.rung_times:
        return Rung.RAISE if now >= request.rung_times[Rung.ASK] + request.ask_grace else None
    return Rung.DUMP if now >= request.rung_times[Rung.RAISE] + request.raise_grace else None
