"""Facts in shared memory: one slot per worker, written without locks, read without asking.

The supervisor maps it before it forks; parent and children see the same pages. It is anonymous memory:
there is no descriptor to leak and no file to clean up, and it is gone with the last process.

Every field is one aligned 64-bit integer with exactly one writer, so a reader sees an old or a new value,
never half of one. What belongs together is held together by the lease: the worker writes it last when a job
begins and clears it first when the job has ended; `Slot.running` reads job and lease before and after the
rest.

Times are nanoseconds of CLOCK_BOOTTIME. Deadlines are promises to the outside world, where time goes on
while a laptop or a virtual machine is suspended; CLOCK_MONOTONIC would stand still. Both are the same for
all processes of the machine.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

FIELDS = 32
SLOT_SIZE = FIELDS * 8


class State(IntEnum):
    """What a worker does, as it says itself."""

    EMPTY = 0  #: no process
    BOOTING = 1  #: forked; start hooks run
    IDLE = 2  #: waits for an order
    RUNNING = 3  #: the handler has the process; the ladder may climb
    REPORTING = 4  #: the handler has ended; no wish can undo that
    LEAVING = 5  #: stop hooks run


class Reason(IntEnum):
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


class Running(NamedTuple):
    """One consistent look at the job in a slot."""

    job: int
    lease: int
    state: int
    started: int
    deadline: int
    memory: int
    cpu_before: int
    output_from: int


class Slot:
    """One worker's line of the scoreboard."""

    __slots__ = ("view",)

    # written by the worker
    beat = Field(0)
    # of the job that runs here, in the order in which `begin` writes them
    started = Field(1)
    cpu_before = Field(2)  # microseconds used when the job began
    output_from = Field(3)  # offset in the capture file where the job's output begins
    exclusive = Field(4)  # 1: must be dead before its lease can be somebody else's
    stall = Field(5)  # nanoseconds without a sign of life that it may have, 0: any
    progress = Field(6)  # permille, -1: unknown
    deadline = Field(7)  # 0: none
    memory = Field(8)  # bytes, 0: no limit
    extended = Field(9)  # nanoseconds that its handler asked for beyond the deadline
    loop = Field(10)  # 1: an event loop has the main thread
    state = Field(11)
    job = Field(12)
    lease = Field(13)
    told = Field(14)  # the last `tell` that was answered
    closed = Field(15)  # 1: a handler has closed its channel to the master
    # written by the supervisor
    wish_job = Field(16)
    wish_lease = Field(17)
    wish_reason = Field(18)
    rung = Field(19)
    asked = Field(20)
    raised = Field(21)
    tell = Field(22)  # grows when the tasks of the event loop should be written to the dump
    # written by the supervisor: a deadline that an operator moved counts instead of the slot's own
    moved_job = Field(29)
    moved_lease = Field(30)
    moved_deadline = Field(31)
    # written by the worker, at its birth
    dump = Field(23)  # number of the descriptor that faulthandler writes stacks to
    struck = Field(24)  # when JobStopped was last raised in a handler; by the worker
    used = Field(
        25
    )  # bytes that the job had when it broke its memory limit, children included; by the supervisor

    def __init__(self, view: memoryview[int]) -> None:
        self.view = view

    def clear(self) -> None:
        """By the supervisor, while no process has the slot."""
        for index in range(FIELDS):
            self.view[index] = 0

    def begin(
        self,
        job: int,
        lease: int,
        started: int,
        deadline: int,
        memory: int,
        cpu: int,
        output: int,
        exclusive: int = 0,
        stall: int = 0,
    ) -> None:
        """By the worker: a job is mine. The lease comes last."""
        _begin(
            self.view, _BEGIN_AT, started, cpu, output, exclusive, stall, -1,
            deadline, memory, 0, 0, _RUNNING, job, lease,
        )  # fmt: skip

    def end(self) -> None:
        """By the worker: its report is on the way. The lease goes first."""
        view = self.view
        view[_LEASE] = 0
        _end(view, _END_AT, 0, 0, 0, 0, _IDLE, 0)

    def rest(self) -> None:
        """By the worker: I wait for an order."""
        self.view[STATE] = _IDLE

    def leave(self, deadline: int) -> None:
        """By the worker: what is left to do for me must be done by then."""
        self.view[_DEADLINE] = deadline
        self.view[STATE] = _LEAVING

    def running(self) -> Running:
        """By the supervisor: job 0 means none."""
        while True:
            job, lease = self.job, self.lease
            seen = Running(
                job if lease else 0,
                lease,
                self.state,
                self.started,
                self.due(),
                self.memory,
                self.cpu_before,
                self.output_from,
            )
            if (self.job, self.lease) == (job, lease):
                return seen

    def due(self) -> int:
        """When what runs here must be gone; 0: no such time. The two parts have two writers (see `suspend`)."""
        if self.moved_job and (self.moved_job, self.moved_lease) == (self.job, self.lease):
            return self.moved_deadline
        deadline = self.deadline
        return deadline + self.extended if deadline else 0

    def move_deadline(self, job: int, lease: int, deadline: int) -> None:
        """By the supervisor: this very execution must be gone by then. The job number comes last."""
        self.moved_job = 0
        self.moved_lease = lease
        self.moved_deadline = deadline
        self.moved_job = job

    def wish(self, job: int, lease: int, reason: int, asked: int) -> None:
        """By the supervisor: this job should stop. The job number comes last."""
        if (self.wish_job, self.wish_lease) == (job, lease):
            return
        self.wish_job = 0
        self.wish_reason = reason
        self.rung = 0
        self.asked = asked
        self.raised = 0
        self.wish_lease = lease
        self.wish_job = job

    def wished(self, job: int, lease: int) -> int:
        """By the worker: the reason why this very execution should stop, 0 if it may go on."""
        view = self.view
        return view[_WISH_REASON] if view[_WISH_JOB] == job and view[_WISH_LEASE] == lease else 0


def _index(name: str) -> int:
    """Of a field, for code that runs with every job: a descriptor costs a call."""
    found: int = vars(Slot)[name].index
    return found


_LEASE, STATE, _DEADLINE = _index("lease"), _index("state"), _index("deadline")
_WISH_JOB, _WISH_LEASE, _WISH_REASON = _index("wish_job"), _index("wish_lease"), _index("wish_reason")
_RUNNING, _IDLE, _LEAVING = int(State.RUNNING), int(State.IDLE), int(State.LEAVING)

# Fields in a row by one call, each as one number and in their order. `begin`: started … lease; `end`: deadline … job.
_begin, _BEGIN_AT = struct.Struct("13q").pack_into, 8 * _index("started")
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


#: The clock of the scoreboard. Asked several times by every job, so without a function of ours around it.
now: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
