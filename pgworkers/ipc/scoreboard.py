"""What each worker does and should do, in shared memory: one slot per worker, written and read without locks.

The supervisor maps the memory before it forks, so parent and children see the same pages. It is anonymous memory: there is
no descriptor to leak and no file to remove, and it is gone with the last process.

Every field is one aligned 64-bit integer with one writer at a time, so a reader sees an old or a new value, never half of
one. The supervisor writes the worker's fields only while no process has the slot, and the deadline while the worker is
stopped (`suspend`). Fields that belong together are held together by the lease: the worker writes it last when a job
begins and clears it first when the job has ended, and `Slot.read_job` reads job and lease before and after the rest.

Times are nanoseconds of CLOCK_BOOTTIME. Deadlines are promises to the outside world, where time goes on while a laptop or
a virtual machine is suspended; CLOCK_MONOTONIC would stop. Both clocks are the same for all processes of the
machine.
"""

from __future__ import annotations

import ctypes
import mmap
from enum import IntEnum
from typing import NamedTuple

#: Distance of two slots: whole cache lines.
SLOT_BYTES = 256


class SlotState(IntEnum):
    """What a worker does, as it says itself.

    EMPTY > BOOTING (by the supervisor) > IDLE > RUNNING > REPORTING > IDLE > LEAVING. An order that cannot be read goes from
    RUNNING to IDLE. A worker whose channel breaks while it reports goes from REPORTING to LEAVING. The supervisor sets any
    state to EMPTY when it has reaped the process.
    """

    EMPTY = 0  #: no process
    BOOTING = 1  #: forked; start hooks run
    IDLE = 2  #: waits for an order
    RUNNING = 3  #: the handler has the process; a stop request may interrupt it
    REPORTING = 4  #: the handler has ended; a stop request comes too late
    LEAVING = 5  #: stop hooks run


# Written with every job. Python 3.11 takes long to look up a member of an enum, so it is done once.
_RUNNING, _REPORTING, _IDLE = SlotState.RUNNING, SlotState.REPORTING, SlotState.IDLE


class StopReason(IntEnum):
    """Why a job should stop."""

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
        """The reason in messages, events and handlers."""
        return self.name.lower()

    @classmethod
    def _missing_(cls, value: object) -> StopReason:
        """A reason that only a newer version knows counts as KILL: an upgrade may happen between two forks."""
        return cls.KILL


class SlotJob(NamedTuple):
    """A consistent copy of the job in a slot."""

    job: int  # 0: none
    lease: int
    state: int
    started_at: int
    deadline: int
    memory_limit: int
    cpu_at_start: int
    output_start: int

    @property
    def key(self) -> tuple[int, int]:
        return self.job, self.lease

    @property
    def is_running(self) -> bool:
        """True while the handler has the process."""
        return self.state == _RUNNING


class Slot(ctypes.Structure):
    """One worker's part of the scoreboard. ctypes stores each field by one aligned 8-byte copy."""

    # written by the worker
    beat_count: int
    started_at: int
    cpu_at_start: int  # microseconds used when the job began
    output_start: int  # offset in the capture file where the job's output begins
    is_exclusive: int  # 1: it must be dead before another host can get its lease
    stall_timeout: int  # nanoseconds that it may show no sign of life; 0: any
    progress_permille: int  # -1: unknown
    deadline: int  # 0: none
    memory_limit: int  # bytes; 0: no limit
    deadline_extension: int  # nanoseconds that its handler asked for beyond the deadline
    has_event_loop: int  # 1: an event loop has the main thread
    state: int
    job: int
    lease: int
    task_dumps_written: int  # the last `task_dumps_requested` that was answered
    has_closed_channel: int  # 1: a handler has closed the channel to the master
    dump_fd: int  # number of the descriptor that faulthandler writes stacks to
    job_stopped_raised_at: int  # when JobStopped was last raised in a handler
    # written by the supervisor
    stop_job: int
    stop_lease: int
    stop_reason: int
    stop_requested_at: int
    raise_signal_sent_at: int
    task_dumps_requested: int  # grows when the tasks of the event loop should be written to the dump
    memory_used: int  # bytes that the job had when it broke its memory limit, children included
    override_job: int  # with the next two: a deadline that an operator set counts instead of the slot's own
    override_lease: int
    override_deadline: int

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("beat_count", "started_at", "cpu_at_start", "output_start", "is_exclusive", "stall_timeout"),
            *("progress_permille", "deadline", "memory_limit", "deadline_extension", "has_event_loop"),
            *("state", "job", "lease", "task_dumps_written", "has_closed_channel", "dump_fd"),
            *("job_stopped_raised_at", "stop_job", "stop_lease", "stop_reason", "stop_requested_at"),
            *("raise_signal_sent_at", "task_dumps_requested", "memory_used"),
            *("override_job", "override_lease", "override_deadline"),
        )
    ]

    def clear(self) -> None:
        """By the supervisor, while no process has the slot."""
        for field in self._fields_:
            setattr(self, field[0], 0)

    def begin_job(
        self,
        *,
        job: int,
        lease: int,
        started_at: int,
        deadline: int = 0,
        memory_limit: int = 0,
        cpu_at_start: int = 0,
        output_start: int = 0,
        is_exclusive: bool = False,
        stall_timeout: int = 0,
    ) -> None:
        """By the worker: enter a job. The lease comes last."""
        self.started_at = started_at
        self.cpu_at_start = cpu_at_start
        self.output_start = output_start
        self.is_exclusive = is_exclusive
        self.stall_timeout = stall_timeout
        self.progress_permille = -1
        self.deadline = deadline
        self.memory_limit = memory_limit
        self.deadline_extension = 0
        self.has_event_loop = 0
        self.state = _RUNNING
        self.job = job
        self.lease = lease

    def end_job(self) -> None:
        """By the worker, after its report: the slot has no job. The lease goes first."""
        self.lease = 0
        self.deadline = 0
        self.memory_limit = 0
        self.deadline_extension = 0
        self.has_event_loop = 0
        self.state = _IDLE
        self.job = 0

    def set_idle(self) -> None:
        """By the worker: it waits for an order."""
        self.state = _IDLE

    def set_reporting(self) -> None:
        """By the worker: the handler has ended."""
        self.state = _REPORTING

    def set_leaving(self, deadline: int) -> None:
        """By the worker: its stop hooks run and must have ended by the deadline."""
        self.deadline = deadline
        self.state = SlotState.LEAVING

    def read_job(self) -> SlotJob:
        """By the supervisor: the job in the slot, copied again until job and lease were the same before and after."""
        while True:
            job, lease = self.job, self.lease
            seen = SlotJob(
                job=job if lease else 0,
                lease=lease,
                state=self.state,
                started_at=self.started_at,
                deadline=self.effective_deadline(),
                memory_limit=self.memory_limit,
                cpu_at_start=self.cpu_at_start,
                output_start=self.output_start,
            )
            if (self.job, self.lease) == (job, lease):
                return seen

    def effective_deadline(self) -> int:
        """When the job must have ended; 0: no such time. Deadline and extension have different writers (see `suspend`)."""
        if self.override_job and (self.override_job, self.override_lease) == (self.job, self.lease):
            return self.override_deadline
        deadline = self.deadline
        return deadline + self.deadline_extension if deadline else 0

    def set_deadline_override(self, job: int, lease: int, deadline: int) -> None:
        """By the supervisor: this job and lease must have ended by then. The job number comes last."""
        self.override_job = 0
        self.override_lease = lease
        self.override_deadline = deadline
        self.override_job = job

    def request_stop(self, job: int, lease: int, reason: StopReason, requested_at: int) -> None:
        """By the supervisor: this job should stop. The first reason stays. The job number comes last."""
        if (self.stop_job, self.stop_lease) == (job, lease):
            return
        self.stop_job = 0
        self.stop_reason = reason
        self.stop_requested_at = requested_at
        self.raise_signal_sent_at = 0
        self.stop_lease = lease
        self.stop_job = job

    def stop_requested_for(self, job: int, lease: int) -> int:
        """By the worker: the StopReason for which this job and lease should stop, 0 if it may go on."""
        return self.stop_reason if self.stop_job == job and self.stop_lease == lease else 0


class Scoreboard:
    """All slots of one supervisor."""

    def __init__(self, slots: int) -> None:
        self._map = mmap.mmap(-1, max(1, slots) * SLOT_BYTES)  # MAP_SHARED and anonymous
        self.slots = [self.slot(index) for index in range(slots)]

    def slot(self, index: int, kind: type[Slot] = Slot) -> Slot:
        """The memory of a slot as an object of its own."""
        return kind.from_buffer(self._map, index * SLOT_BYTES)

    def __getitem__(self, index: int) -> Slot:
        return self.slots[index]

    def __len__(self) -> int:
        return len(self.slots)
