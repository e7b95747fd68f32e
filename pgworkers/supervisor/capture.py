"""Output and stack dumps of one worker, in files without a name that outlive it.

The worker's stdout and stderr are such a file, so are those of the processes its handler starts. Nobody can
block on it, and its end is there to be read when the process is dead. The supervisor passes new lines on to
its own stderr (`screen`), so that a user who prints sees it; where that does not take them, lines are dropped
and counted.
"""

from __future__ import annotations

import os
from os import close  # as it was before `noting`

from pgworkers.process import memfd
from pgworkers.supervisor import stack
from pgworkers.supervisor.screen import Screen

#: Output that is passed on and beyond this is given back to the kernel; so is what waits beyond its share of the screen.
KEEP = 1 << 20
#: What one worker may pass on before it is another's turn; a longer line is not passed on in one piece.
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
        self.over = False  # its process is dead: nothing will be added
        self._forgotten = 0

    @property
    def descriptors(self) -> list[int]:
        return [self.output, self.dump]

    @property
    def behind(self) -> int:
        """How much output was not passed on."""
        return memfd.size(self.output) - self.echoed

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

    def is_dump_of(self, pid: int, fd: int) -> bool:
        """Does this descriptor of the worker still mean the dump file? Its handler may have closed it."""
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), os.fstat(self.dump))
        except OSError:
            return False

    def dump_size(self) -> int:
        return memfd.size(self.dump)

    def dump_is_whole(self) -> bool:
        """Does it end where a main thread began? faulthandler writes that thread last, and says nothing at the end."""
        end = memfd.size(self.dump)
        last = memfd.between(self.dump, 0, end, _LINE).rstrip(b"\n").rpartition(b"\n")[2]
        return last.endswith(_ROOTS)

    def echo(self, screen: Screen, everything: bool) -> bool:
        """Pass on one turn's share of whole lines (or of `everything`); True: perhaps there is more."""
        end = memfd.size(self.output)
        if self.echoed == end:
            return False
        share = os.pread(self.output, min(_TURN, end - self.echoed), self.echoed)
        lines = share.rfind(b"\n") + 1
        if lines:
            share = share[:lines]
        elif len(share) < _TURN and not everything and not self.over:
            return False
        self.echoed += screen.show(share, self)
        return self.echoed < end

    def trim(self, screen: Screen, share: int) -> None:
        """Give back the memory of what nobody needs, and drop what the screen cannot be expected to take."""
        end = memfd.size(self.output)
        if end - self.echoed > max(share, 2 * self._keep):
            self.drop(screen, self._line_after(end - self._keep))
        if end - self._forgotten > 2 * self._keep:
            self._forgotten = memfd.forget(self.output, self._forgotten, min(end - self._keep, self.echoed))

    def drop(self, screen: Screen, upto: int | None = None) -> None:
        """What waits will not be shown (`upto` there); the screen says how much it was."""
        upto = memfd.size(self.output) if upto is None else upto
        screen.drop(upto - self.echoed)
        self.echoed = upto

    def _line_after(self, start: int) -> int:
        """Where the next line begins, so that what is shown again is not the end of one."""
        return start + os.pread(self.output, _TURN, start).find(b"\n") + 1

    def close(self) -> None:
        close(self.output)
        close(self.dump)
