"""The first steps of a forked worker: from a copy of its supervisor to a process of its own."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import msgspec

from pgworkers.app import App
from pgworkers.ipc.lease_deadline import LeaseDeadline
from pgworkers.ipc.report_page import ReportPage
from pgworkers.ipc.scoreboard import Slot
from pgworkers.linux import limits
from pgworkers.linux.descriptors import OwnedDescriptor, OwnedSocket
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec

SignalHandler = Callable[[int, FrameType | None], None]


class WorkerSetup(msgspec.Struct):
    """All that a worker is given: by its crib, and below that by its birth."""

    app: App
    settings: Settings
    queue: QueueSpec
    index: int
    slot: Slot
    lease_deadline: LeaseDeadline
    supervisor_pid: int
    signals_to_reset: list[tuple[int, Any]]  # that the supervisor hears, and what they are without it

    socket: OwnedSocket = cast("OwnedSocket", None)
    tickets: OwnedDescriptor = cast(
        "OwnedDescriptor", None
    )  # reading end of the pipe that says which order may begin
    report_page: ReportPage | None = (
        None  # for reports that are not sent yet; a worker that has one job needs none
    )
    output: OwnedDescriptor = cast("OwnedDescriptor", None)  # the capture file
    dump: OwnedDescriptor = cast("OwnedDescriptor", None)  # where stacks are written to
    has_deferred_heartbeat: bool = (
        False  # its life is likely over before a heartbeat is of any use, and its order on the way
    )


def take_over_process(
    output: int, dump: int, signals_to_reset: list[tuple[int, Any]], on_signal: SignalHandler
) -> None:
    """Redirect the output, replace the supervisor's signal handlers and enable stack dumps.

    The supervisor has configured the streams and emptied stdin before the fork.
    """
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.set_wakeup_fd(-1)
    for signum, wanted in signals_to_reset:
        try:
            signal.signal(signum, wanted)
        except (OSError, ValueError):
            continue  # a real-time signal that the C library keeps for itself
    signal.signal(signal.SIGUSR1, on_signal)
    signal.signal(signal.SIGUSR2, ignore_dump_signal)
    faulthandler.enable(file=dump, all_threads=True)
    faulthandler.register(signal.SIGUSR2, file=dump, all_threads=True, chain=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def apply_queue_limits(setup: WorkerSetup) -> None:
    """What its queue may take, where it has limits; and random numbers that are no sibling's."""
    limits.set_cores(setup.index, setup.queue.cores, setup.queue.pin)
    limits.set_address_space(setup.queue.address_space)
    _reseed_numpy()


def has_queue_limits(setup: WorkerSetup) -> bool:
    """Is there anything for `apply_queue_limits` to do?"""
    queue = setup.queue
    return bool(queue.cores or queue.pin or queue.address_space is not None or "numpy.random" in sys.modules)


def empty_stdin() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    if empty != 0:
        os.close(empty)


def redirect_streams(output: int) -> None:
    """stdin empty, stdout and stderr into the capture file, also for the processes a handler starts."""
    empty_stdin()
    os.dup2(output, 1)
    os.dup2(output, 2)


def configure_streams() -> None:
    """Make stdout and stderr line-buffered UTF-8 that can print any character. In the supervisor, for all its workers."""
    sys.stdout = _configure(sys.__stdout__, 1)
    sys.stderr = _configure(sys.__stderr__, 2)


def _configure(stream: Any, fd: int) -> io.TextIOWrapper:
    if (
        not isinstance(stream, io.TextIOWrapper) or stream.closed
    ):  # the master was started with a closed stdout
        return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    if not (stream.line_buffering and (stream.encoding, stream.errors) == ("utf-8", "backslashreplace")):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return stream


def enable_stack_dumps(dump: OwnedDescriptor) -> None:
    """Stacks are written by C code: at a crash, and on SIGUSR2 even while somebody holds the GIL."""
    if dump.is_still_ours():
        faulthandler.enable(file=dump.fd, all_threads=True)
        faulthandler.register(signal.SIGUSR2, file=dump.fd, all_threads=True, chain=False)
    else:
        disable_stack_dumps()


def disable_stack_dumps() -> None:
    """Write no stacks any more: their descriptor is another file by now, or this process is not the worker."""
    faulthandler.unregister(signal.SIGUSR2)
    faulthandler.disable()


def ignore_dump_signal(_signum: int, _frame: FrameType | None) -> None:
    """SIGUSR2 while faulthandler does not have it: a lost dump, never the end of the process."""


def restore_dump_signal(dump: OwnedDescriptor) -> None:
    """After a handler took SIGUSR2 for itself. faulthandler believes it still has the signal, so it must let go first."""
    faulthandler.unregister(signal.SIGUSR2)
    enable_stack_dumps(dump)


def _reseed_numpy() -> None:
    """Siblings must not draw the same numbers. Python's own `random` sees to that itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
