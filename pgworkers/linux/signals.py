"""Signals: receive them in a loop, block them, send them to exactly the right process."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgworkers.linux import proc

ALL_SIGNALS = signal.valid_signals()
_tgkill: Any = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc since 2.30
STOP_POLL_SECONDS = 0.001
MAX_STOP_POLLS = 50


class SignalWakeup:
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

    def drain(self) -> set[int]:
        """The signals since the last call. A full buffer loses numbers, so the loop checks its children at each tick."""
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


class BlockedSignals:
    """Block all signals but `except_for`: around a fork, where the child still has its parent's handlers, and where a thread
    is started, which inherits the mask."""

    def __init__(self, except_for: int = 0) -> None:
        self._blocked = ALL_SIGNALS - {except_for}
        self._before: set[int | signal.Signals] = set()

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def signals_to_reset(except_for: Iterable[int]) -> list[tuple[int, Any]]:
    """Signals that differ from a fresh Python, with their fresh handlers (SIGPIPE is ignored), but for `except_for`."""
    found: list[tuple[int, Any]] = []
    for signum in ALL_SIGNALS:
        wanted = signal.SIG_IGN if signum == signal.SIGPIPE else signal.SIG_DFL
        if signum not in (signal.SIGKILL, signal.SIGSTOP, *except_for) and signal.getsignal(signum) != wanted:
            found.append((signum, wanted))
    return found


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def send(pid: int, signum: int) -> bool:
    """Signal a child that is not reaped yet, so that no other process can have its pid. False: it is gone."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def send_to_main_thread(pid: int, signum: int) -> bool:
    """Signal the main thread of a child, and no other; unless it has blocked the signal: then any thread will do.

    A signal for the whole process would go to whichever thread comes first.
    """
    if _tgkill is None or _main_blocks(pid, signum):
        return send(pid, signum)
    return bool(_tgkill(pid, pid, signum) == 0)


def _main_blocks(pid: int, signum: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:")), 0)
    return bool(mask >> (signum - 1) & 1)


def send_to_group(pgid: int, signum: int) -> bool:
    """Signal a group whose leader is not reaped yet."""
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        # EPERM: some member changed its user; the leader itself is signalled by `send`
        return False
    return True


def stop_and_wait(pid: int) -> None:
    """Stop a child that is not reaped yet, and wait until it is stopped. Its own children continue."""
    send(pid, signal.SIGSTOP)
    for _ in range(MAX_STOP_POLLS):
        found = proc.read_stat(pid)
        if found is None or found.state in "TtZXx":
            return
        time.sleep(STOP_POLL_SECONDS)


def is_stopped(pid: int) -> bool:
    found = proc.read_stat(pid)
    return found is not None and found.state in "Tt"


def kill_by_start_time(pid: int, start_ticks: int) -> bool:
    """SIGKILL a process that is not our child, named by pid and start time. False: it is gone, or that is not permitted."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = proc.read_stat(pid)  # after the pidfd, which from now on means this very process
        if found is None or found.start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
