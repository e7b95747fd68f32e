"""What workers print, and where it goes.

The stdout and stderr of a worker, and of the processes that its handler starts, are a file without a name that outlives the
worker (`OutputCapture`). Writing to it never blocks, and its end can be read when the process is dead. The supervisor passes
new lines on to its own stderr (`OutputScreen`) and never waits for it. Lines that stderr does not take are dropped and
counted.

What an attempt keeps is cut to `output_limit`: by worker/attempt.py for a report, by reaper.py for a death.
"""

from __future__ import annotations

import os
import socket
import stat as modes
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from pgworkers.linux import memfd

#: Bytes of output that stay in memory after they were passed on. Older ones are released.
KEPT_OUTPUT_BYTES = 1 << 20
#: What one worker may pass on in a turn. A longer line is cut.
RELAY_TURN_BYTES = 64 << 10


class OutputCapture:
    """The output of one worker, in a file without a name."""

    def __init__(self, name: str, output_limit: int) -> None:
        self._kept_bytes = max(KEPT_OUTPUT_BYTES, 2 * output_limit)
        self.output = memfd.create(f"pgworkers-output-{name}")
        self.relayed_to = 0  # how far output was passed on
        self.is_complete = False  # its process is dead: nothing will be added
        self._released_to = 0

    @property
    def unrelayed_bytes(self) -> int:
        """How much output was not passed on."""
        return memfd.size(self.output) - self.relayed_to

    def tail(self, start: int, limit: int) -> str:
        """The end of what was written to stdout and stderr since `start`."""
        data = memfd.read_range(self.output, max(start, self._released_to), memfd.size(self.output), limit)
        return data.decode("utf-8", "replace")

    def relay(self, screen: OutputScreen, include_partial_lines: bool) -> bool:
        """Pass on one turn's share of whole lines (or of all there is); True: perhaps there is more."""
        end = memfd.size(self.output)
        if self.relayed_to == end:
            return False
        share = os.pread(self.output, min(RELAY_TURN_BYTES, end - self.relayed_to), self.relayed_to)
        lines = share.rfind(b"\n") + 1
        if lines:
            share = share[:lines]
        elif len(share) < RELAY_TURN_BYTES and not include_partial_lines and not self.is_complete:
            return False
        self.relayed_to += screen.write_lines(share, self)
        return self.relayed_to < end

    def trim(self, screen: OutputScreen, share: int) -> None:
        """Release the memory of old output, and drop what stderr cannot be expected to take."""
        end = memfd.size(self.output)
        if end - self.relayed_to > max(share, 2 * self._kept_bytes):
            self.drop(screen, self._line_after(end - self._kept_bytes))
        if end - self._released_to > 2 * self._kept_bytes:
            self._released_to = memfd.release_pages(
                self.output, self._released_to, min(end - self._kept_bytes, self.relayed_to)
            )

    def drop(self, screen: OutputScreen, upto: int | None = None) -> None:
        """Drop output that waits, up to an offset. The screen counts it."""
        upto = memfd.size(self.output) if upto is None else upto
        screen.drop(upto - self.relayed_to)
        self.relayed_to = upto

    def _line_after(self, start: int) -> int:
        """Where the next line begins, so that the output goes on with a whole line."""
        return start + os.pread(self.output, RELAY_TURN_BYTES, start).find(b"\n") + 1

    def close(self) -> None:
        os.close(self.output)


#: Time without a write after which a full stderr counts as stuck.
STUCK_AFTER_SECONDS = 1.0
#: How much output of all workers may wait while stderr is read, but more slowly than the handlers print.
MAX_WAITING_BYTES = 64 << 20
#: How long the loop may spend on passing output on at once.
RELAY_SLICE_SECONDS = 0.05
#: A pipe takes this much in one piece or not at all, so that lines of several supervisors do not mix.
PIPE_WRITE_BYTES = 4096
FILE_WRITE_BYTES = 64 << 10
#: Number of dead workers whose output may wait for stderr. With more, the oldest is dropped and counted.
MAX_CAPTURES_OF_DEAD = 8
#: How long a supervisor that ends tries to show what its workers printed, and how often.
EXIT_OUTPUT_SECONDS = 0.2
EXIT_POLL_SECONDS = 0.005


class OutputSource(Protocol):
    """What one worker prints (`OutputCapture`)."""

    @property
    def unrelayed_bytes(self) -> int: ...
    def relay(self, screen: OutputScreen, include_partial_lines: bool) -> bool: ...
    def trim(self, screen: OutputScreen, share: int) -> None: ...


class OutputScreen:
    """The supervisor's stderr, written to without waiting.

    O_NONBLOCK belongs to the open file, which is shared with the master and the shell, so a pipe or terminal is opened
    again. A regular file is not: the two descriptors would have different offsets, and a file never blocks.
    """

    def __init__(self, fd: int = 2) -> None:
        self.is_full = False
        self._dropped_unreported = 0  # dropped bytes that stderr does not mention yet
        self._dropped_count = 0  # dropped bytes that were not reported to the master yet
        self._full_since: float | None = None
        self._line_of: OutputSource | None = None  # whose line is not complete
        self._fd = -1
        self._piece = PIPE_WRITE_BYTES
        self._socket: socket.socket | None = None
        try:
            kind = os.fstat(fd).st_mode
            if modes.S_ISSOCK(kind):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif modes.S_ISREG(kind):
                self._fd, self._piece = os.dup(fd), FILE_WRITE_BYTES
            else:
                path = f"/proc/self/fd/{fd}"
                self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # closed, or not permitted: output is then only in the records of jobs

    @property
    def descriptors(self) -> list[int]:
        if self._socket is not None:
            return [self._socket.fileno()]
        return [self._fd] if self._fd >= 0 else []

    @property
    def is_stuck(self) -> bool:
        """True if it is full and was not read for a while."""
        since = self._full_since
        return self.is_full and since is not None and time.monotonic() - since > STUCK_AFTER_SECONDS

    def relay(self, sources: Sequence[OutputSource], include_partial_lines: bool) -> bool:
        """Turn by turn, until nothing waits, the screen is full or the loop has other things to do.

        True: more waits.
        """
        self.is_full = False
        self._report_dropped()
        until = time.monotonic() + RELAY_SLICE_SECONDS
        waiting = sorted(sources, key=lambda one: one is not self._line_of)
        while waiting and not self.is_full:
            waiting = [one for one in waiting if one.relay(self, include_partial_lines)]
            if time.monotonic() > until:
                break
        share = 0 if self.is_stuck else share_of_backlog([one.unrelayed_bytes for one in waiting])
        for one in sources:
            one.trim(self, share)
        return bool(waiting)

    def write_lines(self, data: bytes, whose: OutputSource) -> int:
        """How many bytes were taken. A line that another one left incomplete is ended first."""
        if self._line_of is not whose and not self._end_line():
            return 0
        sent = 0
        while sent < len(data) and not self.is_full:
            piece = data[sent : sent + self._piece]
            sent += self._write(piece[: piece.rfind(b"\n") + 1] or piece)
        if sent:
            self._line_of = None if data[sent - 1 : sent] == b"\n" else whose
        return sent

    def drop(self, count: int) -> None:
        self._dropped_unreported += count
        self._dropped_count += count

    def take_dropped_count(self) -> int:
        """How much was dropped since the last time this was asked."""
        dropped, self._dropped_count = self._dropped_count, 0
        return dropped

    def _report_dropped(self) -> None:
        """Write how much was dropped, as soon as there is room."""
        if self._dropped_unreported and self._end_line():
            note = (
                b"[pgworkers: dropped %d bytes of output: stderr was not read in time]\n"
                % self._dropped_unreported
            )
            if self._write(note):
                self._dropped_unreported = 0

    def _end_line(self) -> bool:
        if self._line_of is not None and self._write(b"\n"):
            self._line_of = None
        return self._line_of is None

    def _write(self, data: bytes) -> int:
        """How many bytes were taken; without a place to write to, all of them."""
        try:
            if self._socket is not None:
                count = self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            else:
                count = os.write(self._fd, data) if self._fd >= 0 else len(data)
        except BlockingIOError:
            self.is_full = True
            if self._full_since is None:
                self._full_since = time.monotonic()
            return 0
        except OSError:  # closed, or no space left: a print must not stop a job
            self.drop(len(data))
            return len(data)
        self._full_since = None
        return count


class OutputRelay:
    """Passes on the output of all workers, the dead ones included."""

    def __init__(self) -> None:
        self._screen = OutputScreen()
        self._dead: list[OutputCapture] = []  # of dead workers, with output that was not shown yet
        self.has_more = False  # more can be shown at once
        self.is_blocked = False  # more can be shown when stderr takes it

    @property
    def descriptors(self) -> list[int]:
        """Descriptors to poll until stderr takes output again. A worker must not inherit them."""
        return self._screen.descriptors

    def relay(self, living: Iterable[OutputCapture], *, include_partial_lines: bool = False) -> None:
        """Pass on what workers printed. Lines that are not complete wait, unless they are included."""
        has_more = self._screen.relay([*self._dead, *living], include_partial_lines)
        self.has_more = has_more and not self._screen.is_full
        self.is_blocked = has_more and self._screen.is_full
        for capture in [capture for capture in self._dead if not capture.unrelayed_bytes]:
            self._dead.remove(capture)
            capture.close()

    def keep_after_death(self, capture: OutputCapture, living: Iterable[OutputCapture]) -> None:
        """Keep the output of a dead worker until it is shown, or dropped and counted."""
        capture.is_complete = True
        if not capture.unrelayed_bytes:
            capture.close()
            return
        self._dead.append(capture)
        self.relay(living)
        while len(self._dead) > MAX_CAPTURES_OF_DEAD:
            self._dead[0].drop(self._screen)
            self._dead.pop(0).close()

    def flush_at_exit(self) -> None:
        """Show what is left of dead workers for a moment, then drop and count it."""
        give_up = time.monotonic() + EXIT_OUTPUT_SECONDS
        self.relay(())
        while self._dead and time.monotonic() < give_up:
            time.sleep(EXIT_POLL_SECONDS)
            self.relay(())
        for capture in self._dead:
            capture.drop(self._screen)
        self.relay(())

    def take_dropped_count(self) -> int:
        """Bytes that were dropped since the last call."""
        return self._screen.take_dropped_count()


def share_of_backlog(unrelayed_bytes: Sequence[int]) -> int:
    """How many bytes each worker may let wait.

    Below the total limit there is no limit for one worker.
    """
    return (
        MAX_WAITING_BYTES
        if sum(unrelayed_bytes) <= MAX_WAITING_BYTES
        else MAX_WAITING_BYTES // len(unrelayed_bytes)
    )
