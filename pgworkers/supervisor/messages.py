"""The messages between the master and a supervisor, over their control socket (SOCK_SEQPACKET, one JSON text per packet).

Commands go down, events come up. Each message about a worker names its incarnation: the number of its fork in the life of
this supervisor. Processes follow each other in a slot, and a pid can be used again, but an incarnation is one process.

`Forked` carries three or four descriptors: the master's end of the new worker's socketpair, the reading and the writing end
of its ticket pipe, and its report page if it has one.
"""

from __future__ import annotations

import msgspec

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.specs import QueueSpec


class Boot(msgspec.Struct, tag="boot", tag_field="type"):
    """The first packet: everything a supervisor needs.

    Secrets travel here, never in argv or environ.
    """

    config: str
    queue: QueueSpec
    workers: int
    settings: dict[str, object]  # the master's Settings as a dict
    host: str  # the boot id
    label: str = ""
    version: str = ""  # of the user's code, for the title
    metrics_directory: str = ""  # where metrics of prometheus_client live; empty: nowhere
    metrics_lane: int = 0  # differs between supervisors of a queue that live at the same time
    uses_prometheus: bool = False  # the app imports prometheus_client


class Scale(msgspec.Struct, tag="scale", tag_field="type"):
    """How many workers there should be.

    For fewer, no replacements are forked; the master closes idle workers' sockets.
    """

    workers: int


class StopJob(msgspec.Struct, tag="stop", tag_field="type", kw_only=True):
    """Stop this job and lease by the ladder. Graces in seconds."""

    slot: int
    incarnation: int
    job: int
    lease: int
    reason: StopReason
    ask_grace: float
    raise_grace: float


class SetDeadline(msgspec.Struct, tag="move_deadline", tag_field="type", kw_only=True):
    """This job and lease must be gone by `at` (nanoseconds of CLOCK_BOOTTIME), whatever its attempt was given."""

    slot: int
    incarnation: int
    job: int
    lease: int
    at: int


class DumpStacks(msgspec.Struct, tag="dump", tag_field="type"):
    """Write all stacks of a worker now and send them up as `StackDumped`, without stopping it."""

    slot: int
    incarnation: int
    token: int


class SuspendJob(msgspec.Struct, tag="suspend", tag_field="type", kw_only=True):
    """Stop the group of this job's worker (SIGSTOP), or continue it.

    A suspended job's deadline waits.
    """

    slot: int
    incarnation: int
    job: int
    lease: int
    token: int
    should_suspend: bool


class Exit(msgspec.Struct, tag="exit", tag_field="type"):
    """Kill every worker group, sweep, leave."""


class Booted(msgspec.Struct, tag="booted", tag_field="type"):
    seconds: float
    modules: int


class BootFailed(msgspec.Struct, tag="boot_failed", tag_field="type"):
    error: str
    traceback: str = ""


class Forked(msgspec.Struct, tag="forked", tag_field="type"):
    slot: int
    pid: int
    incarnation: int
    is_ready: bool = False  # it takes its first order at once and sends no READY


class Died(msgspec.Struct, tag="died", tag_field="type"):
    """A worker is gone: reaped, its group killed, its orphans swept.

    `job` is 0 when it was idle.

    `stuck` names processes that SIGKILL did not end in time. They are reaped later.
    """

    slot: int
    pid: int
    incarnation: int
    job: int
    lease: int
    status: str  # "exit 0", "exit 3", "SIGKILL"
    signal: int  # 0: it exited
    was_ready: bool  # had it come as far as READY
    reason: StopReason | None = None  # why its job was stopped
    rungs: list[tuple[str, float]] = []
    is_oom: bool = False
    is_dumping: bool = False  # it crashed while its stacks were written
    stack: str | None = None
    output: str | None = None
    duration: float = 0.0
    cpu: float = 0.0
    peak_rss: int = 0
    swept: int = 0
    stuck: list[
        str
    ] = []  # processes of it that SIGKILL did not end in time; its slot stays empty until they are gone
    foreign: list[str] = []  # processes of it that are another user's, so that we may not end them
    killed_children: list[str] = []  # what the job had started and was killed with it
    memory_limit: int = 0  # bytes that the job may have; 0: any
    memory_used: int = 0  # bytes that it had when it broke that limit, children included
    stop_seconds: float = 0.0  # from the stop request to the death; 0 without one
    has_closed_channel: bool = False  # its handler had closed its channel to the master
    is_lost: bool = False  # it died with its supervisor

    @property
    def has_exited_cleanly(self) -> bool:
        """True if the process ended by itself with status 0."""
        return self.status == "exit 0"


class StallChanged(msgspec.Struct, tag="stalled", tag_field="type"):
    """A worker lives but neither uses CPU nor sends heartbeats, or does so again."""

    slot: int
    incarnation: int
    job: int
    lease: int
    is_stalled: bool


class StackDumped(msgspec.Struct, tag="stack", tag_field="type"):
    slot: int
    incarnation: int
    token: int
    text: str


class SuspendAnswered(msgspec.Struct, tag="suspended", tag_field="type"):
    """The answer to `SuspendJob`: done, or why not."""

    slot: int
    incarnation: int
    token: int
    is_done: bool
    text: str


class Alive(msgspec.Struct, tag="alive", tag_field="type"):
    """The loop goes round, and these are its workers.

    Sent every second while a worker is busy. While all are idle, the interval is a fifth of the supervisor timeout, but at
    least one and at most two seconds. Packets keep their order. So a worker that the master knows and that is not listed is
    gone, and its `Died` was lost.
    """

    incarnations: list[int]  # of workers whose death has not been sent


class StartDelayed(msgspec.Struct, tag="resting", tag_field="type"):
    """Workers end without having run a job. The next one is started after `seconds`."""

    seconds: float
    deaths: int
    has_been_ready: bool = False  # they had come as far as READY, and left without a job


class BytesDropped(msgspec.Struct, tag="dropped", tag_field="type"):
    """Bytes that workers printed and that were not shown, because stderr was not read in time."""

    count: int


Command = Boot | Scale | StopJob | SetDeadline | DumpStacks | SuspendJob | Exit
SupervisorEvent = (
    Booted
    | BootFailed
    | Forked
    | Died
    | StallChanged
    | StackDumped
    | SuspendAnswered
    | Alive
    | StartDelayed
    | BytesDropped
)
