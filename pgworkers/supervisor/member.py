"""What a supervisor knows of one worker."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pgworkers.process.scoreboard import Slot, State
from pgworkers.supervisor.capture import Capture
from pgworkers.supervisor.ladder import Climb
from pgworkers.supervisor.watch import Pulse


@dataclass(slots=True)
class DumpWish:
    """A `Dump` that waits for faulthandler to finish writing."""

    token: int
    size: int  # of the file when it was asked for
    seen: int  # at the last look
    until: float


class Worker(msgspec.Struct, eq=False):  # by C code: one is made for each birth
    """A forked worker that we have not reaped, so its pid is its own."""

    index: int
    pid: int
    incarnation: int
    slot: Slot
    capture: Capture
    climbs: dict[tuple[int, int], Climb] = {}
    pulse: Pulse = msgspec.field(default_factory=Pulse)
    dumps: list[DumpWish] = []
    dump_seen: int = 0  # size of the dump file at the last look
    killed: str | None = None  # why we sent SIGKILL
    killed_at: float = 0.0  # when we did so first
    forked_at: float = 0.0
    seen_ready: bool = False
    grown: bool = False  # has it lived long enough to be looked at?
    called: float = 0.0  # when it was last asked for its heartbeat
    measure_at: float = 0.0  # when its memory is looked at next
    measured_key: tuple[int, int] = (0, 0)  # the job and lease that were looked at last
    suspended: float = 0.0  # since when its group stands still by wish
    suspended_key: tuple[int, int] = (0, 0)  # the job and lease for which it does

    @property
    def ready(self) -> bool:
        """Has it come as far as READY?"""
        return self.slot.state > State.BOOTING

    @property
    def busy(self) -> bool:
        return self.slot.lease != 0
