"""When a signal may raise.

SIGUSR1 means: look at your slot. The handler below runs in the main thread between two bytecodes, wherever
that is: in the handler, in the middle of sending a report, in the next job. It raises only while the window
is open and the wish in the slot names the very job and lease inside it, and once at most.

`run` calls the handler through `map`, whose C code puts the return value into the box with no bytecode between:
either the handler was interrupted, or its result is there. A stop that comes a moment later finds the box
full and changes nothing: a finished handler wins over a late cancel. What it calls must hand on a StopIteration
as `Carried`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from pgworkers.errors import JobStopped
from pgworkers.process.descriptors import Descriptor
from pgworkers.process.scoreboard import Reason, Slot, now
from pgworkers.worker.loop import Loop


class Carried(Exception):
    """A StopIteration on its way through `map`, which would take it for its own end."""


class Window:
    dump: Descriptor  # where stacks are written, from its worker's birth on

    def __init__(self, slot: Slot, loop: Loop, heed: Callable[[], None]) -> None:
        self._slot = slot
        self._loop = loop
        self._loops = (loop,)
        self._heed = heed  # the signal may mean that somebody misses our heartbeat
        self._open = False
        self.raised: BaseException | None = None  # by the last handler

    def on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._heed()
        slot = self._slot
        wanted = slot.tell
        if wanted != slot.told:
            if self.dump.is_ours():
                self._loop.write_stacks(self.dump.fd)
            slot.told = wanted
        if not self._open:
            return
        reason = slot.wished(slot.job, slot.lease)
        if not reason or not slot.raised:
            return  # the signal is about something else
        self._open = False  # once
        slot.struck = now()
        if not self._loop.interrupt():
            raise JobStopped(Reason(reason).word)

    def run(self, call: Callable[[Loop], bytes]) -> bytes | None:
        """Call the handler of the job in the slot with the window open. Its result, or None: see `raised`."""
        box: list[bytes] = []
        raised: BaseException | None = None
        try:
            try:
                self._open = True
                box.extend(map(call, self._loops))
            except Carried as carried:
                raised = carried.__cause__
            except BaseException as error:
                raised = error
            finally:
                self._open = False
        except JobStopped as late:  # it struck while we were leaving the inner block
            raised = raised or late
        if box:
            return box[0]
        self.raised = raised or RuntimeError("the handler ended without a result; it counts as failed")
        raised = None  # its traceback holds this frame, and with it all that the handler had in its hands
        return None
