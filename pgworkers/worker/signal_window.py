"""The only stretch of code in which a signal may raise JobStopped.

SIGUSR1 means: read your slot. Its Python handler runs in the main thread between two bytecodes, wherever that is: in the
job's handler, in the middle of sending a report, in the next job. It raises only while the window is open and the stop
request in the slot names this very job and lease, and at most once.

`run` calls the job's handler through `map`, whose C code puts the return value into a list with no bytecode between: either
the handler was interrupted, or its result is there. A stop that comes later finds the result and changes nothing: a finished
handler wins over a late cancel. The called function must pass on a StopIteration as `CarriedStopIteration`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from pgworkers.clock import boottime_ns
from pgworkers.errors import JobStopped
from pgworkers.ipc.scoreboard import Slot, StopReason
from pgworkers.linux.descriptors import OwnedDescriptor
from pgworkers.worker.event_loop import WorkerEventLoop


class CarriedStopIteration(Exception):
    """A StopIteration on its way through `map`, which would take it for its own end."""


class SignalWindow:
    dump: OwnedDescriptor  # where stacks are written; set by the worker after the fork

    def __init__(self, slot: Slot, loop: WorkerEventLoop, start_heartbeat: Callable[[], None]) -> None:
        self._slot = slot
        self._loop = loop
        self._loops = (loop,)
        self._start_heartbeat = start_heartbeat  # the signal may also ask for a heartbeat
        self._open = False
        self.exception: BaseException | None = None  # raised by the last handler

    def on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._start_heartbeat()
        slot = self._slot
        wanted = slot.task_dumps_requested
        if wanted != slot.task_dumps_written:
            if self.dump.is_still_ours():
                self._loop.write_stacks(self.dump.fd)
            slot.task_dumps_written = wanted
        if not self._open:
            return
        reason = slot.stop_requested_for(slot.job, slot.lease)
        if not reason or not slot.raise_signal_sent_at:
            return  # the signal is about something else
        self._open = False  # once
        slot.job_stopped_raised_at = boottime_ns()
        if not self._loop.interrupt():
            raise JobStopped(StopReason(reason).word)

    def run(self, call: Callable[[WorkerEventLoop], bytes]) -> bytes | None:
        """Call the handler of the job in the slot with the window open.

        Returns its result; None: see `exception`.
        """
        box: list[bytes] = []
        raised: BaseException | None = None
        try:
            try:
                self._open = True
                box.extend(map(call, self._loops))
            except CarriedStopIteration as carried:
                raised = carried.__cause__
            except BaseException as error:
                raised = error
            finally:
                self._open = False
        except JobStopped as late:  # it came while the inner block was left
            raised = raised or late
        if box:
            return box[0]
        self.exception = raised or RuntimeError("the handler ended without a result; it counts as failed")
        raised = None  # its traceback holds this frame, and with it the handler's objects
        return None
