"""The supervisor's own stderr, where it passes on what workers print: written to without ever waiting."""

from __future__ import annotations

import os
import socket
import stat as modes
import time
from collections.abc import Sequence
from typing import Protocol

#: How long a full screen may take nothing until it counts as stuck.
PATIENCE = 1.0
#: How much may wait for a screen that takes something, only more slowly than the handlers of a queue print, in all.
WAITING = 64 << 20
#: How long the loop may be kept by passing on; what still waits has its turn a moment later.
TURNS = 0.05
#: A pipe takes so much in one piece or not at all, so that lines of several supervisors do not mix.
_PIECE = 4096
_FILE_PIECE = 64 << 10


class Source(Protocol):
    """What one worker prints (`Capture`)."""

    @property
    def behind(self) -> int: ...
    def echo(self, screen: Screen, everything: bool) -> bool: ...
    def trim(self, screen: Screen, share: int) -> None: ...


class Screen:
    """O_NONBLOCK belongs to the open file, which we share with the master and the shell, so a pipe or terminal
    is opened anew. A regular file is not: the two would have different ideas of where its end is, and it
    never blocks.
    """

    def __init__(self, fd: int = 2) -> None:
        self.full = False
        self._lost = 0  # bytes that are not shown and not yet told of on the screen
        self._untold = 0  # the same, not yet told of to the master
        self._full_since: float | None = None
        self._line_of: Source | None = None  # whose line is not complete
        self._fd = -1
        self._piece = _PIECE
        self._socket: socket.socket | None = None
        try:
            kind = os.fstat(fd).st_mode
            if modes.S_ISSOCK(kind):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif modes.S_ISREG(kind):
                self._fd, self._piece = os.dup(fd), _FILE_PIECE
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
    def stuck(self) -> bool:
        """Full, and nobody has read anything for a while."""
        since = self._full_since
        return self.full and since is not None and time.monotonic() - since > PATIENCE

    def pass_on(self, sources: Sequence[Source], everything: bool) -> bool:
        """Turn by turn, until nothing waits, the screen is full or the loop has other things to do. True: more waits."""
        self.full = False
        self._confess()
        until = time.monotonic() + TURNS
        waiting = sorted(sources, key=lambda one: one is not self._line_of)
        while waiting and not self.full:
            waiting = [one for one in waiting if one.echo(self, everything)]
            if time.monotonic() > until:
                break
        share = 0 if self.stuck else share_of([one.behind for one in waiting])
        for one in sources:
            one.trim(self, share)
        return bool(waiting)

    def show(self, data: bytes, whose: Source) -> int:
        """How many bytes were taken. A line that another one left incomplete is ended first."""
        if self._line_of is not whose and not self._end_line():
            return 0
        sent = 0
        while sent < len(data) and not self.full:
            piece = data[sent : sent + self._piece]
            sent += self._write(piece[: piece.rfind(b"\n") + 1] or piece)
        if sent:
            self._line_of = None if data[sent - 1 : sent] == b"\n" else whose
        return sent

    def drop(self, count: int) -> None:
        self._lost += count
        self._untold += count

    def take_dropped(self) -> int:
        """How much was dropped since the last time this was asked."""
        dropped, self._untold = self._untold, 0
        return dropped

    def _confess(self) -> None:
        """As soon as there is room: what was lost."""
        if self._lost and self._end_line():
            note = b"[pgworkers: %d bytes of output were not shown: nobody read them in time]\n" % self._lost
            if self._write(note):
                self._lost = 0

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
            self.full = True
            if self._full_since is None:
                self._full_since = time.monotonic()
            return 0
        except OSError:  # closed, or no space left: a print must not stop a job
            self.drop(len(data))
            return len(data)
        self._full_since = None
        return count


def share_of(behind: Sequence[int]) -> int:
    """How much each may let wait. One that prints much has what the others do not need; too much of all is shared out."""
    return WAITING if sum(behind) <= WAITING else WAITING // len(behind)
