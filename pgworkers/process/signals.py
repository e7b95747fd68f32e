"""Signals as notes: the handler only wakes a selector, the loop does the work."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

ALL = signal.valid_signals()


class Notes:
    """Signals that arrived, read from the wake-up descriptor of the interpreter."""

    def __init__(self, noted: Iterable[signal.Signals], ignored: Iterable[signal.Signals]) -> None:
        self.reader, self.writer = socket.socketpair()
        self.reader.setblocking(False)
        self.writer.setblocking(False)
        signal.set_wakeup_fd(self.writer.fileno(), warn_on_full_buffer=False)
        for signum in noted:
            signal.signal(signum, lambda *_: None)
        for signum in ignored:
            signal.signal(signum, signal.SIG_IGN)

    def take(self) -> set[int]:
        """The signals since the last call. A full buffer loses numbers, so the loop also looks at each tick."""
        taken: set[int] = set()
        while True:
            try:
                data = self.reader.recv(4096)
            except BlockingIOError:
                return taken
            taken.update(data)
            if len(data) < 4096:
                return taken

    @property
    def descriptors(self) -> list[int]:
        return [self.reader.fileno(), self.writer.fileno()]


@contextmanager
def all_blocked() -> Iterator[None]:
    """No signal handler runs here: around fork, where the child still has its parent's handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset(keep_ignored: Iterable[int] = (signal.SIGPIPE,)) -> None:
    """Every signal back to what a fresh Python has, none blocked. SIGPIPE stays ignored, as Python does."""
    signal.set_wakeup_fd(-1)
    kept = set(keep_ignored)
    for signum in ALL - {signal.SIGKILL, signal.SIGSTOP}:
        wanted = signal.SIG_IGN if signum in kept else signal.SIG_DFL
        try:
            if signal.getsignal(signum) != wanted:
                signal.signal(signum, wanted)
        except (OSError, ValueError):
            continue  # a real-time signal that the C library keeps for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def send(pid: int, signum: int) -> bool:
    """Signal a child that we have not reaped (its pid cannot be somebody else's). False: it is gone."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def send_group(pgid: int, signum: int) -> bool:
    """Signal a group whose leader we have not reaped."""
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        # EPERM: some member changed its user; the leader itself is signalled by `send`
        return False
    return True
