"""The first steps of a forked worker: from a copy of its supervisor to a process of its own."""

from __future__ import annotations

import faulthandler
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable
from faulthandler import enable as _enable
from faulthandler import register as _register
from os import close, dup2  # as they were before `noting`
from types import FrameType
from typing import Any, cast

import msgspec

from pgworkers.app import App
from pgworkers.process import limits
from pgworkers.process.descriptors import Channel, Descriptor
from pgworkers.process.scoreboard import Slot
from pgworkers.process.shelf import Shelf
from pgworkers.process.term import Term
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec

_c_signal: Any = importlib.import_module("_signal")  # `signal` makes enums of what it answers
_signal, _set_wakeup_fd, _sigmask = _c_signal.signal, _c_signal.set_wakeup_fd, _c_signal.pthread_sigmask
_SIGUSR1, _SIGUSR2, _SIG_SETMASK = int(signal.SIGUSR1), int(signal.SIGUSR2), int(signal.SIG_SETMASK)

OnSignal = Callable[[int, FrameType | None], None]


class Birth(msgspec.Struct):
    """All that a worker is given: by its crib, and below that by its birth."""

    app: App
    settings: Settings
    queue: QueueSpec
    index: int
    slot: Slot
    term: Term
    parent: int
    signals: list[tuple[int, Any]]  # that the supervisor hears, and what they are without it

    sock: Channel = cast("Channel", None)
    tickets: Descriptor = cast("Descriptor", None)  # reading end of the pipe that says which order may begin
    shelf: Shelf | None = None  # for reports that are not sent yet; a worker that has one job needs none
    output: Descriptor = cast("Descriptor", None)  # the capture file
    dump: Descriptor = cast("Descriptor", None)  # where stacks are written to
    brief: bool = False  # its life is likely over before a heartbeat is of any use, and its order on the way


def settle(output: int, dump: int, heard: list[tuple[int, Any]], on_signal: OnSignal) -> None:
    """Streams, signals, dumps. The streams are dressed and stdin is empty: the supervisor's are.

    Every worker runs this, once, so that the interpreter learns nothing of it: no attribute is looked up, no enum made.
    """
    dup2(output, 1)
    dup2(output, 2)
    _set_wakeup_fd(-1)
    for signum, wanted in heard:
        try:
            _signal(signum, wanted)
        except (OSError, ValueError):
            continue  # a real-time signal that the C library keeps for itself
    _signal(_SIGUSR1, on_signal)
    _signal(_SIGUSR2, unheard)
    _enable(dump, True)
    _register(_SIGUSR2, dump, True, False)
    _sigmask(_SIG_SETMASK, ())


def bound(birth: Birth) -> None:
    """What its queue may take, where it has limits; and random numbers that are no sibling's."""
    limits.set_cores(birth.index, birth.queue.cores, birth.queue.pin)
    limits.set_address_space(birth.queue.address_space)
    _reseed()


def is_bound(birth: Birth) -> bool:
    """Is there anything for `bound` to do?"""
    queue = birth.queue
    return bool(queue.cores or queue.pin or queue.address_space is not None or "numpy.random" in sys.modules)


def empty_stdin() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    dup2(empty, 0)
    if empty != 0:
        close(empty)


def point_streams(output: int) -> None:
    """stdin empty, stdout and stderr into the capture file, also for the processes a handler starts."""
    empty_stdin()
    dup2(output, 1)
    dup2(output, 2)


def _is_dressed(stream: Any) -> bool:
    return bool(
        isinstance(stream, io.TextIOWrapper)
        and not stream.closed
        and stream.line_buffering
        and (stream.encoding, stream.errors) == ("utf-8", "backslashreplace")
    )


def dress_streams() -> None:
    """Whole lines at once, and a character that cannot be printed is no reason to fail a job. In the supervisor, for all."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, f"__{name}__")
        if stream is not None and _is_dressed(stream):
            pass
        elif isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
        else:  # the master was started with a closed stdout
            stream = open(  # noqa: SIM115
                fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
        setattr(sys, name, stream)


def watch_faults(dump: Descriptor) -> None:
    """Stacks are written by C code: at a crash, and on SIGUSR2 even while somebody holds the GIL."""
    if dump.is_ours():
        faulthandler.enable(file=dump.fd, all_threads=True)
        faulthandler.register(signal.SIGUSR2, file=dump.fd, all_threads=True, chain=False)
    else:
        forget_faults()


def forget_faults() -> None:
    """Write no stacks any more: their descriptor is another file by now, or this process is not the worker."""
    faulthandler.unregister(signal.SIGUSR2)
    faulthandler.disable()


def unheard(_signum: int, _frame: FrameType | None) -> None:
    """SIGUSR2 while faulthandler does not have it: a lost dump, never the end of the process."""


def hear_dumps_again(dump: Descriptor) -> None:
    """After a handler took SIGUSR2 for itself. faulthandler believes it still has the signal, so it must let go first."""
    faulthandler.unregister(signal.SIGUSR2)
    watch_faults(dump)


def _reseed() -> None:
    """Siblings must not draw the same numbers. Python's own `random` sees to that itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
