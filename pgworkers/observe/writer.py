"""Lines to a descriptor that may block, from a process that must not.

A thread writes; `put` only appends to a bounded buffer. When the reader of our stdout stands still, lines are
dropped and counted, and the count is written when it moves again. A closed stdout is no reason to stop.
"""

from __future__ import annotations

import os
import threading
from collections import deque


class LineWriter:
    def __init__(self, fd: int, limit: int = 10_000) -> None:
        self.dropped = 0
        self._fd = fd
        self._limit = limit
        self._lines: deque[str] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._told = 0
        self._thread = threading.Thread(target=self._run, name="pgworkers-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        if len(self._lines) >= self._limit:
            self.dropped += 1
            return
        self._lines.append(line)
        self._wake.set()

    def close(self, timeout: float = 1.0) -> None:
        """Write what is left, but never wait long for a reader that stands still."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                lines = [self._lines.popleft() for _ in range(min(len(self._lines), 200))]
                if self.dropped > self._told:
                    lines.append(f"({self.dropped - self._told} lines were dropped: the output was not read)")
                    self._told = self.dropped
                if not self._write(("\n".join(lines) + "\n").encode("utf-8", "replace")):
                    self.dropped += len(lines)
                    self._told = self.dropped
            if self._closing:
                return

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except InterruptedError:
                continue
            except BlockingIOError:
                threading.Event().wait(0.05)
            except OSError:
                return False
        return True
