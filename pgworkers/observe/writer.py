"""Lines to a descriptor that may block, from a process that must not.

A thread writes; `put` only appends to a bounded buffer. When the reader of our stdout stands still, has gone or its
disk is full, lines are dropped and counted, and the count is written when it moves again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

UNREAD = "the output was not read"
#: Lines are written in turns, so that a line a millisecond does not wake a thread a millisecond.
TURN = 0.02
_MOST = 500  # lines in one turn


def dropped_line(count: int, why: str) -> str:
    return f"{count:,} log lines were dropped: {why}"


class LineWriter:
    """Lines of `size` characters together may wait."""

    def __init__(self, fd: int, size: int = 8 << 20) -> None:
        self.dropped = 0
        self.why = UNREAD  #: of the last drop
        self.tell_dropped: Callable[[int, str], str] = dropped_line
        self._fd = fd
        self._room = size
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()  # of the room and the count: two threads change them
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._told = 0
        self._seen = 0  # by whoever asks with `untold`
        self._flows = True  # the last turn was written
        self._torn = False  # the last thing written is half a line
        self._thread = threading.Thread(target=self._run, name="pgworkers-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        with self._lock:
            if self._room < len(line):
                self.dropped += 1
                self.why = UNREAD
                return
            self._room -= len(line)
            self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def untold(self) -> int:
        """How many lines were dropped since the last time somebody asked."""
        lost = self.dropped - self._seen
        self._seen += lost
        return lost

    def close(self, timeout: float = 1.0) -> None:
        """Write what is left, but never wait long for a reader that stands still."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines or (self._flows and self.dropped > self._told):
                self._turn()
            if self._closing.is_set():
                return
            self._closing.wait(TURN)

    def _turn(self) -> None:
        some = [self._lines.popleft() for _ in range(min(len(self._lines), _MOST))]
        lost, why = self.dropped - self._told, self.why
        before = [self.tell_dropped(lost, why)] if lost else []
        text = "\n".join([*before, *some]) + "\n"
        if self._torn:
            text = "\n" + text
        error = self._write(text.encode("utf-8", "backslashreplace"))
        with self._lock:
            self._room += sum(map(len, some))
            self._flows = error is None
            if error is None:
                self._told += lost
            else:
                self.dropped += len(some)
                self.why = error

    def _write(self, data: bytes) -> str | None:
        """Why it could not be written, all of it."""
        view = memoryview(data)
        while view:
            try:
                done = os.write(self._fd, view)
            except InterruptedError:
                continue
            except BlockingIOError:  # somebody who shares the terminal or pipe does not like to wait
                if self._closing.wait(0.05):
                    threading.Event().wait(0.05)
                continue
            except OSError as error:
                return os.strerror(error.errno or 0)
            self._torn = view[done - 1] != 0x0A
            view = view[done:]
        return None
