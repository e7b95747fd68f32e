"""What a supervisor knows of one worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pgworkers.ipc.scoreboard import Slot, SlotState, StopReason
from pgworkers.supervisor.ladder import StopRequest
from pgworkers.supervisor.stall_detector import LifeSigns

if TYPE_CHECKING:
    from pgworkers.supervisor.output import OutputCapture
    from pgworkers.supervisor.stack_dump import StackDumpFile


@dataclass(slots=True)
class DumpRequest:
    """A `DumpStacks` that waits for faulthandler to finish writing."""

    token: int
    start_size: int  # of the file when it was asked for
    last_size: int  # at the last look
    give_up_at: float


class WorkerRecord(msgspec.Struct, eq=False, kw_only=True):
    """A forked worker that is not reaped yet, so its pid is its own."""

    index: int
    pid: int
    incarnation: int
    slot: Slot
    capture: OutputCapture
    dump: StackDumpFile
    stop_requests: dict[tuple[int, int], StopRequest] = {}
    life_signs: LifeSigns = msgspec.field(default_factory=LifeSigns)
    dump_requests: list[DumpRequest] = []
    dump_size_seen: int = 0  # size of the dump file at the last look
    kill_reason: StopReason | None = None  # why it was sent SIGKILL
    killed_at: float = 0.0  # when we did so first
    forked_at: float = 0.0
    was_seen_ready: bool = False
    has_been_checked: bool = False  # it was checked at least once
    heartbeat_requested_at: float = 0.0  # when it was last asked for its heartbeat
    next_measure_at: float = 0.0  # when its memory is measured next
    measured_job: tuple[int, int] = (0, 0)  # the job and lease that were measured last
    suspended_at: float = 0.0  # since when its group is suspended
    suspended_job: tuple[int, int] = (0, 0)  # the job and lease that is suspended

    @property
    def is_ready(self) -> bool:
        """True once its start hooks have run."""
        return self.slot.state > SlotState.BOOTING

    @property
    def is_busy(self) -> bool:
        return self.slot.lease != 0
