"""Write lines to a descriptor that may block, from a process that must not.

A thread writes; `put` only appends to a bounded buffer. When the reader of our stdout is stopped, has gone or its disk is
full, lines are dropped and counted. The count is written when writing works again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

OUTPUT_NOT_READ = "the output was not read"
#: Lines are written in batches, so that a line per millisecond does not wake the thread each millisecond.
WRITE_INTERVAL_SECONDS = 0.02
_MAX_LINES_PER_WRITE = 500


def dropped_lines_message(count: int, why: str) -> str:
    return f"{count:,} log lines were dropped: {why}"


class LineWriter:
    """A thread that writes lines. At most `max_characters` wait in its buffer."""

    def __init__(self, fd: int, max_characters: int = 8 << 20) -> None:
        self.dropped = 0
        self.drop_reason = OUTPUT_NOT_READ  #: of the last drop
        self.format_dropped: Callable[[int, str], str] = dropped_lines_message
        self._fd = fd
        self._free_characters = max_characters
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()  # of the room and the count: two threads change them
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._reported_drops = 0
        self._taken_drops = 0  # already returned by `take_dropped_count`
        self._is_flowing = True  # the last turn was written
        self._is_mid_line = False  # the last thing written is half a line
        self._thread = threading.Thread(target=self._run, name="pgworkers-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        with self._lock:
            if self._free_characters < len(line):
                self.dropped += 1
                self.drop_reason = OUTPUT_NOT_READ
                return
            self._free_characters -= len(line)
            self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def take_dropped_count(self) -> int:
        """How many lines were dropped since the last call."""
        lost = self.dropped - self._taken_drops
        self._taken_drops += lost
        return lost

    def close(self, timeout: float = 1.0) -> None:
        """Write what is left, but never wait long for a reader that is stopped."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines or (self._is_flowing and self.dropped > self._reported_drops):
                self._write_batch()
            if self._closing.is_set():
                return
            self._closing.wait(WRITE_INTERVAL_SECONDS)

    def _write_batch(self) -> None:
        some = [self._lines.popleft() for _ in range(min(len(self._lines), _MAX_LINES_PER_WRITE))]
        lost, why = self.dropped - self._reported_drops, self.drop_reason
        before = [self.format_dropped(lost, why)] if lost else []
        text = "\n".join([*before, *some]) + "\n"
        if self._is_mid_line:
            text = "\n" + text
        error = self._write(text.encode("utf-8", "backslashreplace"))
        with self._lock:
            self._free_characters += sum(map(len, some))
            self._is_flowing = error is None
            if error is None:
                self._reported_drops += lost
            else:
                self.dropped += len(some)
                self.drop_reason = error

    def _write(self, data: bytes) -> str | None:
        """Write the data. Returns the reason if not all of it could be written."""
        view = memoryview(data)
        while view:
            try:
                done = os.write(self._fd, view)
            except InterruptedError:
                continue
            except BlockingIOError:  # another process has made the shared terminal or pipe non-blocking
                if self._closing.wait(0.05):
                    threading.Event().wait(0.05)
                continue
            except OSError as error:
                return os.strerror(error.errno or 0)
            self._is_mid_line = view[done - 1] != 0x0A
            view = view[done:]
        return None
