"""Which rung of the stop ladder is due. Pure: numbers in, one action out.

ask -> (ask_grace) -> raise -> (raise_grace) -> dump -> kill. A climb belongs to one job *and lease*; it does nothing
while the worker has another one, and is over as soon as the handler has ended. An operator's kill begins at the dump: who
asks for a process to be gone does not want its handler to be asked, nor the next job to run in what is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

#: How long a dump may take before the kill comes anyway, and how many looks it gets at least: in the time in which we did
#: not run, the worker may not have run either.
DUMP_TIME = 0.2
DUMP_LOOKS = 20


class Rung(StrEnum):
    ASK = "ask"
    RAISE = "raise"
    DUMP = "dump"
    KILL = "kill"


class Seen(NamedTuple):
    """What the supervisor sees of the worker now."""

    job: int
    lease: int
    running: bool  # the handler has the process
    dumped: bool = False  # the dump has been written


@dataclass(slots=True)
class Climb:
    """One wish on its way up. Times are seconds of the scoreboard's clock."""

    job: int
    lease: int
    reason: str
    wished: float
    ask_grace: float
    raise_grace: float
    met: bool = False  # the worker was seen running this job
    times: dict[Rung, float] = field(default_factory=dict)
    looks: int = 0  # since the dump
    hard: bool = False  # a kill: neither ask nor raise

    def hurry(self, ask_grace: float, raise_grace: float, *, hard: bool = False) -> None:
        """A second wish for the same job: the reason stays, the graces can only shrink."""
        self.ask_grace = min(self.ask_grace, ask_grace)
        self.raise_grace = min(self.raise_grace, raise_grace)
        self.hard = self.hard or hard

    def record(self, *, struck: bool) -> list[tuple[str, float]]:
        """Each rung and its time after the wish. `struck`: JobStopped was raised; else its signal was only sent."""
        return [
            (
                "signal" if rung is Rung.RAISE and not struck else str(rung),
                round(max(0.0, at - self.wished), 3),
            )
            for rung, at in self.times.items()
        ]

    def due(self) -> float | None:
        """When to look again, or None: not by time."""
        if not self.met:
            return None
        if Rung.DUMP in self.times:
            return None  # a dump is looked at again and again
        if self.hard:
            return self.wished
        if Rung.RAISE in self.times:
            return self.times[Rung.RAISE] + self.raise_grace
        return self.times[Rung.ASK] + self.ask_grace if Rung.ASK in self.times else self.wished


def concerns(climb: Climb, seen: Seen) -> bool:
    return seen.running and (seen.job, seen.lease) == (climb.job, climb.lease)


def over(climb: Climb, seen: Seen) -> bool:
    """The handler that should stop has ended (or was never that of this worker any more)."""
    return climb.met and not concerns(climb, seen)


def tick(now: float, climb: Climb, seen: Seen) -> Rung | None:
    """The rung to climb now; call again after it was noted in `climb.times`."""
    if not concerns(climb, seen) or Rung.KILL in climb.times:
        return None
    if Rung.DUMP not in climb.times:
        return Rung.DUMP if climb.hard else _before_dump(now, climb)
    late = now >= climb.times[Rung.DUMP] + DUMP_TIME and climb.looks >= DUMP_LOOKS
    return Rung.KILL if seen.dumped or late else None


def _before_dump(now: float, climb: Climb) -> Rung | None:
    if Rung.ASK not in climb.times:
        return Rung.ASK
    if Rung.RAISE not in climb.times:
        return Rung.RAISE if now >= climb.times[Rung.ASK] + climb.ask_grace else None
    return Rung.DUMP if now >= climb.times[Rung.RAISE] + climb.raise_grace else None
