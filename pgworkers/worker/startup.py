"""The first steps of a forked worker: what it is given, and how a copy of its supervisor becomes a process of its own."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pgworkers.app import App
from pgworkers.ipc.lease_deadline import LeaseDeadline
from pgworkers.ipc.report_page import ReportPage
from pgworkers.ipc.scoreboard import Slot
from pgworkers.linux import process_limits
from pgworkers.linux.descriptors import OwnedDescriptor, OwnedSocket
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec

SignalHandler = Callable[[int, FrameType | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What a worker gets before the fork. The supervisor makes it once per slot."""

    app: App
    settings: Settings
    queue: QueueSpec
    index: int
    slot: Slot
    lease_deadline: LeaseDeadline
    supervisor_pid: int
    signals_to_reset: list[tuple[int, Any]]  # signals that the supervisor handles, and their default handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHandles:
    """What a worker gets by its fork: descriptors of its own."""

    socket: OwnedSocket
    tickets: OwnedDescriptor  # reading end of the ticket pipe
    report_page: ReportPage | None  # None in a process that runs one job
    output: OwnedDescriptor  # the capture file
    dump: OwnedDescriptor  # the file that stacks are written to
    is_short_lived: (
        bool  # the process likely ends before a heartbeat is of any use, and its order is on the way
    )


def take_over_process(
    handles: WorkerHandles, signals_to_reset: list[tuple[int, Any]], on_signal: SignalHandler
) -> None:
    """Redirect the output, replace the supervisor's signal handlers and enable stack dumps.

    The supervisor has configured the streams and emptied stdin before the fork.
    """
    os.dup2(handles.output.fd, 1)
    os.dup2(handles.output.fd, 2)
    signal.set_wakeup_fd(-1)
    for signum, handler in signals_to_reset:
        try:
            signal.signal(signum, handler)
        except (OSError, ValueError):
            continue  # a real-time signal that the C library keeps for itself
    signal.signal(signal.SIGUSR1, on_signal)
    signal.signal(signal.SIGUSR2, ignore_dump_signal)
    enable_stack_dumps(handles.dump)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def apply_queue_limits(setup: WorkerSetup) -> None:
    """Set the cores and the address space of the queue, and seed numpy's random numbers."""
    process_limits.set_cores(setup.index, setup.queue.cores, setup.queue.pin)
    process_limits.set_address_space(setup.queue.address_space)
    _reseed_numpy()


def has_queue_limits(setup: WorkerSetup) -> bool:
    """True if `apply_queue_limits` has anything to do."""
    queue = setup.queue
    return bool(queue.cores or queue.pin or queue.address_space is not None or "numpy.random" in sys.modules)


def empty_stdin() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    if empty != 0:
        os.close(empty)


def redirect_streams(output: int) -> None:
    """Make stdin empty, and stdout and stderr the capture file, also for processes that a handler starts."""
    empty_stdin()
    os.dup2(output, 1)
    os.dup2(output, 2)


def configure_streams() -> None:
    """Make stdout and stderr line-buffered UTF-8 that can print any character.

    In the supervisor, for all its workers.
    """
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
    """Let C code write all stacks: at a crash, and on SIGUSR2 even while a thread holds the GIL."""
    if dump.is_still_ours():
        faulthandler.enable(file=dump.fd, all_threads=True)
        faulthandler.register(signal.SIGUSR2, file=dump.fd, all_threads=True, chain=False)
    else:
        disable_stack_dumps()


def disable_stack_dumps() -> None:
    """Stop writing stacks: the descriptor is another file by now, or this process is not the worker."""
    faulthandler.unregister(signal.SIGUSR2)
    faulthandler.disable()


def ignore_dump_signal(_signum: int, _frame: FrameType | None) -> None:
    """Handle SIGUSR2 while faulthandler does not: the dump is lost, the process goes on."""


def restore_dump_signal(dump: OwnedDescriptor) -> None:
    """Register faulthandler again after a handler replaced SIGUSR2.

    faulthandler believes that it still has the signal, so it must be unregistered first.
    """
    faulthandler.unregister(signal.SIGUSR2)
    enable_stack_dumps(dump)


def _reseed_numpy() -> None:
    """Workers must not draw the same numbers. Python's own `random` is seeded by a fork hook."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
