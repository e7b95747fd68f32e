"""Output and stack dumps of one worker, in files without a name that outlive it.

The worker's stdout and stderr are such a file, so are those of the processes its handler starts. Nobody can
block on it, and its end is there to be read when the process is dead. The supervisor passes new lines on to
its own stderr, so that a user who prints sees it; where that is slower than the handler, lines are dropped
and counted.
"""

from __future__ import annotations

import os
import socket
import stat as modes

from pgworkers.process import memfd
from pgworkers.supervisor import stack

#: Uncopied or unneeded output beyond this is given back to the kernel.
KEEP = 1 << 20
_WRITE = 4096
_TURN = 64 << 10
STACK_LIMIT = 32 << 10
_LINE = 4096
#: The last line of a stack: where `python -m` begins, or what stands for more than faulthandler writes.
_ROOTS = (b" in _run_module_as_main", b"  ...")


class Capture:
    """The two files of one worker."""

    def __init__(self, name: str, output_limit: int) -> None:
        self._keep = max(KEEP, 2 * output_limit)
        self.output = memfd.create(f"pgworkers-output-{name}")
        self.dump = memfd.create(f"pgworkers-dump-{name}")
        self.echoed = 0  # how far output was passed on
        self.dump_from = 0  # where the dump we are interested in begins
        self._forgotten = 0

    @property
    def descriptors(self) -> list[int]:
        return [self.output, self.dump]

    def tail(self, start: int, limit: int) -> str:
        """The end of what was written to stdout and stderr since `start`."""
        data = memfd.between(self.output, max(start, self._forgotten), memfd.size(self.output), limit)
        return data.decode("utf-8", "replace")

    def stack(self, start: int) -> str:
        """What faulthandler wrote since `start`; of a long one the beginning, where the guilty thread is."""
        end = min(memfd.size(self.dump), start + STACK_LIMIT)
        if end == start:
            return ""  # of nearly every death
        return stack.tell(memfd.between(self.dump, start, end, STACK_LIMIT).decode("utf-8", "replace"))

    def dump_size(self) -> int:
        return memfd.size(self.dump)

    def dump_is_whole(self) -> bool:
        """Does it end where a main thread began? faulthandler writes that thread last, and says nothing at the end."""
        end = memfd.size(self.dump)
        last = memfd.between(self.dump, 0, end, _LINE).rstrip(b"\n").rpartition(b"\n")[2]
        return last.endswith(_ROOTS)

    def echo(self, screen: Screen, everything: bool) -> bool:
        """Pass on whole lines (or `everything`); True: more is waiting."""
        end = memfd.size(self.output)
        if self.echoed < end:
            self._copy(screen, end, everything)
        if end - self._forgotten > 2 * self._keep:
            self._forgotten = memfd.forget(self.output, self._forgotten, end - self._keep)
            if self.echoed < self._forgotten:
                screen.dropped += self._forgotten - self.echoed
                self.echoed = self._forgotten
        return self.echoed < end and not screen.full

    def _copy(self, screen: Screen, end: int, everything: bool) -> None:
        stop = min(end, self.echoed + _TURN)
        while self.echoed < stop and not screen.full:
            piece = os.pread(self.output, min(_WRITE, stop - self.echoed), self.echoed)
            line_end = piece.rfind(b"\n") + 1
            if line_end:
                piece = piece[:line_end]
            elif len(piece) < _WRITE and not everything:
                return
            self.echoed += screen.write(piece)

    def close(self) -> None:
        os.close(self.output)
        os.close(self.dump)


class Screen:
    """The supervisor's own stderr, written to without ever waiting.

    O_NONBLOCK belongs to the open file, which we share with the master and the shell, so a pipe or terminal
    is opened anew. A regular file is not: the two would have different ideas of where its end is, and it
    never blocks.
    """

    def __init__(self, fd: int = 2) -> None:
        self.dropped = 0
        self.full = False
        self._fd = -1
        self._socket: socket.socket | None = None
        try:
            kind = os.fstat(fd).st_mode
            if modes.S_ISSOCK(kind):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif modes.S_ISREG(kind):
                self._fd = os.dup(fd)
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

    def begin(self) -> None:
        """A new turn: perhaps there is room again. Say what was lost."""
        self.full = False
        if self.dropped:
            lost, self.dropped = self.dropped, 0
            note = b"[pgworkers: %d bytes of output were not shown: nobody read them in time]\n" % lost
            if self.write(note) == 0:
                self.dropped = lost

    def write(self, data: bytes) -> int:
        """How many bytes were taken; without a place to write to, all of them."""
        try:
            if self._socket is not None:
                return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            return os.write(self._fd, data) if self._fd >= 0 else len(data)
        except BlockingIOError:
            self.full = True
            return 0
        except OSError:
            return len(data)  # closed, or no space left: a print must not stop a job
