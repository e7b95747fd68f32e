"""Facts in shared memory: one slot per worker, written without locks, read without asking.

The supervisor maps it before it forks; parent and children see the same pages. It is anonymous memory:
there is no descriptor to leak and no file to clean up, and it is gone with the last process.

Every field is one aligned 64-bit integer with exactly one writer, so a reader sees an old or a new value,
never half of one. What belongs together is held together by the lease: the worker writes it last when a job
begins and clears it first when the job has ended; `Slot.read_job` reads job and lease before and after the
rest.

Times are nanoseconds of CLOCK_BOOTTIME. Deadlines are promises to the outside world, where time goes on
while a laptop or a virtual machine is suspended; CLOCK_MONOTONIC would stand still. Both are the same for
all processes of the machine.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from typing import NamedTuple

FIELDS = 32
SLOT_SIZE = FIELDS * 8


class SlotState(IntEnum):
    """What a worker does, as it says itself."""

    EMPTY = 0  #: no process
    BOOTING = 1  #: forked; start hooks run
    IDLE = 2  #: waits for an order
    RUNNING = 3  #: the handler has the process; the ladder may climb
    REPORTING = 4  #: the handler has ended; no wish can undo that
    LEAVING = 5  #: stop hooks run


class StopReason(IntEnum):
    """Why somebody wants a job to stop."""

    NONE = 0
    CANCEL = 1
    DEADLINE = 2
    MEMORY = 3
    DRAIN = 4
    LEASE = 5
    KILL = 6
    STALL = 7

    @property
    def word(self) -> str:
        return self.name.lower()


class Field:
    """One 64-bit number of a slot."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __get__(self, slot: Slot, owner: type[Slot]) -> int:
        return slot.view[self.index]

    def __set__(self, slot: Slot, value: int) -> None:
        slot.view[self.index] = value


class SlotJob(NamedTuple):
    """One consistent look at the job in a slot."""

    job: int
    lease: int
    state: int
    started_at: int
    deadline: int
    memory_limit: int
    cpu_at_start: int
    output_start: int


class Slot:
    """One worker's line of the scoreboard."""

    __slots__ = ("view",)

    # written by the worker
    beat_count = Field(0)
    # of the job that runs here, in the order in which `begin_job` writes them
    started_at = Field(1)
    cpu_at_start = Field(2)  # microseconds used when the job began
    output_start = Field(3)  # offset in the capture file where the job's output begins
    is_exclusive = Field(4)  # 1: must be dead before its lease can be somebody else's
    stall_timeout = Field(5)  # nanoseconds without a sign of life that it may have, 0: any
    progress_permille = Field(6)  # permille, -1: unknown
    deadline = Field(7)  # 0: none
    memory_limit = Field(8)  # bytes, 0: no limit
    deadline_extension = Field(9)  # nanoseconds that its handler asked for beyond the deadline
    has_event_loop = Field(10)  # 1: an event loop has the main thread
    state = Field(11)
    job = Field(12)
    lease = Field(13)
    task_dumps_written = Field(14)  # the last `task_dumps_requested` that was answered
    has_closed_channel = Field(15)  # 1: a handler has closed its channel to the master
    # written by the supervisor
    stop_job = Field(16)
    stop_lease = Field(17)
    stop_reason = Field(18)
    rung = Field(19)
    stop_requested_at = Field(20)
    raise_signal_sent_at = Field(21)
    task_dumps_requested = Field(22)  # grows when the tasks of the event loop should be written to the dump
    # written by the supervisor: a deadline that an operator moved counts instead of the slot's own
    override_job = Field(29)
    override_lease = Field(30)
    override_deadline = Field(31)
    # written by the worker, at its birth
    dump_fd = Field(23)  # number of the descriptor that faulthandler writes stacks to
    job_stopped_raised_at = Field(24)  # when JobStopped was last raised in a handler; by the worker
    memory_used = Field(
        25
    )  # bytes that the job had when it broke its memory limit, children included; by the supervisor

    def __init__(self, view: memoryview[int]) -> None:
        self.view = view

    def clear(self) -> None:
        """By the supervisor, while no process has the slot."""
        for index in range(FIELDS):
            self.view[index] = 0

    def begin_job(
        self,
        job: int,
        lease: int,
        started_at: int,
        deadline: int,
        memory_limit: int,
        cpu_at_start: int,
        output_start: int,
        is_exclusive: int = 0,
        stall_timeout: int = 0,
    ) -> None:
        """By the worker: a job is mine. The lease comes last."""
        _begin(
            self.view, _BEGIN_AT, started_at, cpu_at_start, output_start, is_exclusive, stall_timeout, -1,
            deadline, memory_limit, 0, 0, _RUNNING, job, lease,
        )  # fmt: skip

    def end_job(self) -> None:
        """By the worker: its report is on the way. The lease goes first."""
        view = self.view
        view[_LEASE] = 0
        _end(view, _END_AT, 0, 0, 0, 0, _IDLE, 0)

    def set_idle(self) -> None:
        """By the worker: I wait for an order."""
        self.view[STATE] = _IDLE

    def set_leaving(self, deadline: int) -> None:
        """By the worker: what is left to do for me must be done by then."""
        self.view[_DEADLINE] = deadline
        self.view[STATE] = _LEAVING

    def read_job(self) -> SlotJob:
        """By the supervisor: job 0 means none."""
        while True:
            job, lease = self.job, self.lease
            seen = SlotJob(
                job if lease else 0,
                lease,
                self.state,
                self.started_at,
                self.effective_deadline(),
                self.memory_limit,
                self.cpu_at_start,
                self.output_start,
            )
            if (self.job, self.lease) == (job, lease):
                return seen

    def effective_deadline(self) -> int:
        """When what runs here must be gone; 0: no such time. The two parts have two writers (see `suspend`)."""
        if self.override_job and (self.override_job, self.override_lease) == (self.job, self.lease):
            return self.override_deadline
        deadline = self.deadline
        return deadline + self.deadline_extension if deadline else 0

    def set_deadline_override(self, job: int, lease: int, deadline: int) -> None:
        """By the supervisor: this very execution must be gone by then. The job number comes last."""
        self.override_job = 0
        self.override_lease = lease
        self.override_deadline = deadline
        self.override_job = job

    def request_stop(self, job: int, lease: int, reason: int, requested_at: int) -> None:
        """By the supervisor: this job should stop. The job number comes last."""
        if (self.stop_job, self.stop_lease) == (job, lease):
            return
        self.stop_job = 0
        self.stop_reason = reason
        self.rung = 0
        self.stop_requested_at = requested_at
        self.raise_signal_sent_at = 0
        self.stop_lease = lease
        self.stop_job = job

    def stop_requested_for(self, job: int, lease: int) -> int:
        """By the worker: the reason why this very execution should stop, 0 if it may go on."""
        view = self.view
        return view[_STOP_REASON] if view[_STOP_JOB] == job and view[_STOP_LEASE] == lease else 0


def _index(name: str) -> int:
    """Of a field, for code that runs with every job: a descriptor costs a call."""
    found: int = vars(Slot)[name].index
    return found


_LEASE, STATE, _DEADLINE = _index("lease"), _index("state"), _index("deadline")
_STOP_JOB, _STOP_LEASE, _STOP_REASON = _index("stop_job"), _index("stop_lease"), _index("stop_reason")
_RUNNING, _IDLE, _LEAVING = int(SlotState.RUNNING), int(SlotState.IDLE), int(SlotState.LEAVING)

# Fields in a row by one call, each as one number and in their order.
# `begin_job`: started_at … lease; `end_job`: deadline … job.
_begin, _BEGIN_AT = struct.Struct("13q").pack_into, 8 * _index("started_at")
_end, _END_AT = struct.Struct("6q").pack_into, 8 * _index("deadline")


class Scoreboard:
    """All slots of one supervisor."""

    def __init__(self, slots: int) -> None:
        self._map = mmap.mmap(-1, max(1, slots) * SLOT_SIZE)  # MAP_SHARED and anonymous
        self._view = memoryview(self._map).cast("q")
        self.slots = [Slot(self._view[i * FIELDS : (i + 1) * FIELDS]) for i in range(slots)]

    def __getitem__(self, index: int) -> Slot:
        return self.slots[index]

    def __len__(self) -> int:
        return len(self.slots)
