"""Output and stack dumps of one worker, in files without a name that outlive it.

The worker's stdout and stderr are such a file, so are those of the processes its handler starts. Nobody can
block on it, and its end is there to be read when the process is dead. The supervisor passes new lines on to
its own stderr (`screen`), so that a user who prints sees it; where that does not take them, lines are dropped
and counted.

The supervisor's own stderr, where it passes on what workers print: written to without ever waiting.
"""

from __future__ import annotations

import os
import socket
import stat as modes
import time
from collections.abc import Sequence
from typing import Protocol

from pgworkers.linux import memfd
from pgworkers.supervisor import stack_dump

#: Output that is passed on and beyond this is given back to the kernel; so is what waits beyond its share of the screen.
KEPT_OUTPUT_BYTES = 1 << 20
#: What one worker may pass on before it is another's turn; a longer line is not passed on in one piece.
RELAY_TURN_BYTES = 64 << 10
MAX_STACK_BYTES = 32 << 10
LAST_LINE_BYTES = 4096
#: The last line of a stack: where `python -m` begins, or what stands for more than faulthandler writes.
LAST_STACK_LINES = (b" in _run_module_as_main", b"  ...")


class OutputCapture:
    """The two files of one worker."""

    def __init__(self, name: str, output_limit: int) -> None:
        self._kept_bytes = max(KEPT_OUTPUT_BYTES, 2 * output_limit)
        self.output = memfd.create(f"pgworkers-output-{name}")
        self.dump = memfd.create(f"pgworkers-dump-{name}")
        self.relayed_to = 0  # how far output was passed on
        self.dump_start = 0  # where the dump we are interested in begins
        self.is_complete = False  # its process is dead: nothing will be added
        self._released_to = 0

    @property
    def descriptors(self) -> list[int]:
        return [self.output, self.dump]

    @property
    def unrelayed_bytes(self) -> int:
        """How much output was not passed on."""
        return memfd.size(self.output) - self.relayed_to

    def tail(self, start: int, limit: int) -> str:
        """The end of what was written to stdout and stderr since `start`."""
        data = memfd.read_range(self.output, max(start, self._released_to), memfd.size(self.output), limit)
        return data.decode("utf-8", "replace")

    def stack(self, start: int) -> str:
        """What faulthandler wrote since `start`; of a long one the beginning, where the guilty thread is."""
        end = min(memfd.size(self.dump), start + MAX_STACK_BYTES)
        if end == start:
            return ""  # of nearly every death
        return stack_dump.clean_dump(
            memfd.read_range(self.dump, start, end, MAX_STACK_BYTES).decode("utf-8", "replace")
        )

    def is_dump_open_in(self, pid: int, fd: int) -> bool:
        """Does this descriptor of the worker still mean the dump file? Its handler may have closed it."""
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), os.fstat(self.dump))
        except OSError:
            return False

    def dump_size(self) -> int:
        return memfd.size(self.dump)

    def is_dump_complete(self) -> bool:
        """Does it end where a main thread began? faulthandler writes that thread last, and says nothing at the end."""
        end = memfd.size(self.dump)
        last = memfd.read_range(self.dump, 0, end, LAST_LINE_BYTES).rstrip(b"\n").rpartition(b"\n")[2]
        return last.endswith(LAST_STACK_LINES)

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
        """Give back the memory of what nobody needs, and drop what the screen cannot be expected to take."""
        end = memfd.size(self.output)
        if end - self.relayed_to > max(share, 2 * self._kept_bytes):
            self.drop(screen, self._line_after(end - self._kept_bytes))
        if end - self._released_to > 2 * self._kept_bytes:
            self._released_to = memfd.release_pages(
                self.output, self._released_to, min(end - self._kept_bytes, self.relayed_to)
            )

    def drop(self, screen: OutputScreen, upto: int | None = None) -> None:
        """What waits will not be shown (`upto` there); the screen says how much it was."""
        upto = memfd.size(self.output) if upto is None else upto
        screen.drop(upto - self.relayed_to)
        self.relayed_to = upto

    def _line_after(self, start: int) -> int:
        """Where the next line begins, so that what is shown again is not the end of one."""
        return start + os.pread(self.output, RELAY_TURN_BYTES, start).find(b"\n") + 1

    def close(self) -> None:
        os.close(self.output)
        os.close(self.dump)


#: How long a full screen may take nothing until it counts as stuck.
STUCK_AFTER_SECONDS = 1.0
#: How much may wait for a screen that takes something, only more slowly than the handlers of a queue print, in all.
MAX_WAITING_BYTES = 64 << 20
#: How long the loop may be kept by passing on; what still waits has its turn a moment later.
RELAY_SLICE_SECONDS = 0.05
#: A pipe takes so much in one piece or not at all, so that lines of several supervisors do not mix.
PIPE_WRITE_BYTES = 4096
FILE_WRITE_BYTES = 64 << 10


class OutputSource(Protocol):
    """What one worker prints (`OutputCapture`)."""

    @property
    def unrelayed_bytes(self) -> int: ...
    def relay(self, screen: OutputScreen, include_partial_lines: bool) -> bool: ...
    def trim(self, screen: OutputScreen, share: int) -> None: ...


class OutputScreen:
    """O_NONBLOCK belongs to the open file, which we share with the master and the shell, so a pipe or terminal
    is opened anew. A regular file is not: the two would have different ideas of where its end is, and it
    never blocks.
    """

    def __init__(self, fd: int = 2) -> None:
        self.is_full = False
        self._dropped_unreported = 0  # bytes that are not shown and not yet told of on the screen
        self._dropped_count = 0  # the same, not yet told of to the master
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
            pass  # closed, or not ours to open: what workers print is then only on the record

    @property
    def descriptors(self) -> list[int]:
        if self._socket is not None:
            return [self._socket.fileno()]
        return [self._fd] if self._fd >= 0 else []

    @property
    def is_stuck(self) -> bool:
        """Full, and nobody has read anything for a while."""
        since = self._full_since
        return self.is_full and since is not None and time.monotonic() - since > STUCK_AFTER_SECONDS

    def relay(self, sources: Sequence[OutputSource], include_partial_lines: bool) -> bool:
        """Turn by turn, until nothing waits, the screen is full or the loop has other things to do. True: more waits."""
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
        """As soon as there is room: what was lost."""
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


def share_of_backlog(unrelayed_bytes: Sequence[int]) -> int:
    """How much each may let wait. One that prints much has what the others do not need; too much of all is shared out."""
    return (
        MAX_WAITING_BYTES
        if sum(unrelayed_bytes) <= MAX_WAITING_BYTES
        else MAX_WAITING_BYTES // len(unrelayed_bytes)
    )
