"""States of hosts and workers, roles of connections, and how workers and ticks end.

Events, log lines, metrics and the process view show these words. The moves between the states are next to the classes that
make them: master/lifecycle.py and master/worker_channel.py.
"""

from __future__ import annotations

from enum import StrEnum


class HostState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"  #: claims nothing more; running jobs may finish
    STOPPING = "stopping"  #: the drain time is over; what still runs is stopped
    GONE = "gone"


class WorkerState(StrEnum):
    """What a worker does, as the master sees it."""

    BOOTING = "booting"  #: forked, start hooks run
    READY = "ready"  #: announced itself, has had no order yet
    IDLE = "idle"
    BUSY = "busy"
    SUSPENDED = "suspended"  #: stopped at an operator's request
    UNRESPONSIVE = "unresponsive"  #: takes no tickets
    LEAVING = "leaving"  #: channel closed, stop hooks run
    GONE = "gone"


class ConnectionRole(StrEnum):
    """What a connection of the host is for. Each host has one of each."""

    CLAIM = "claim"  #: claims; also scaling, reload and operator requests
    FINISH = "finish"  #: results; also lost claims and statistics
    LISTEN = "listen"  #: notifications and renewals
    LEADERSHIP = "leadership"  #: the term and the duties; also the end of a burst, batches, and the removal of the host


class WorkerExitReason(StrEnum):
    """How a worker without a job ended. One that had a job ends with the verdict of its attempt."""

    LEFT = "left"  #: as planned: dismissed, or after its last job
    THREADS = "threads"  #: replaced, because threads that its jobs left used CPU
    IDLE = "idle"  #: it died while it had no job


class TickResult(StrEnum):
    """What became of a tick."""

    FIRED = "fired"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"
