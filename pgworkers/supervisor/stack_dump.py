"""Stacks of a worker: ask for them, wait until they are written, and cut our own frames.

The worker writes them (`enable_stack_dumps` in worker/startup.py); supervisor/output.py reads them.
"""

from __future__ import annotations

import os
import re
import signal
from functools import partial

from pgworkers.linux import signals
from pgworkers.supervisor import suspend
from pgworkers.supervisor.ladder import Rung
from pgworkers.supervisor.messages import DumpStacks, StackDumped, SupervisorEvent
from pgworkers.supervisor.worker_record import DumpRequest, WorkerRecord

_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Frames in these files are below every handler and always the same.
_OUR_FILES = tuple(f'  File "{_PACKAGE_DIRECTORY}/{name}' for name in ("worker/", "task.py", "supervisor/"))
#: One line. A dump that is cut at its end may have the beginning of it.
_EXTENSIONS = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
_HEARTBEAT = f'  File "{_PACKAGE_DIRECTORY}/worker/heartbeat.py"'


def clean_dump(dump: str) -> str:
    """Drop the heartbeat thread, the frames under the handler and the list of extension modules, which is longer than all
    the rest where numeric libraries are loaded; keep everything if nothing would be left."""
    dump = _EXTENSIONS.sub("", dump)
    blocks = [_cut_our_frames(block) for block in dump.split("\n\n") if _HEARTBEAT not in block]
    kept = "\n\n".join(block for block in blocks if block.strip())
    return kept.strip() or dump.strip()


def _cut_our_frames(block: str) -> str:
    """An idle worker's stack is all ours: it is kept whole."""
    lines = block.split("\n")
    frames = [line for line in lines if line.startswith("  File ")]
    if not frames or frames[0].startswith(_OUR_FILES):
        return block
    kept: list[str] = []
    cut = False
    for line in lines:
        cut = cut or line.startswith(_OUR_FILES)
        if not (cut and line.startswith("  ")):
            kept.append(line)
    return "\n".join(kept)


NO_DUMP_TEXT = "no stack: the job's handler has closed the descriptor that stacks are written to"


def request_dump(worker: WorkerRecord) -> None:
    """All stacks into the dump file, by faulthandler's C code. A stopped process is continued for it.

    The signals come first: they wait for the process and are the first thing it does, even if it stops itself again.
    """
    worker.capture.dump_start = worker.dump_size_seen = worker.capture.dump_size()
    write_stacks(worker)
    if suspend.is_stopped(worker):
        signals.send_to_group(worker.pid, signal.SIGCONT)


def write_stacks(worker: WorkerRecord) -> bool:
    """By the main thread itself: another one could be stopped by it in the middle of the writing, and here
    faulthandler has finished before Python writes its part.

    False: the descriptor that faulthandler would write to is not the dump file any more, so nothing was asked for.
    """
    if not worker.capture.is_dump_open_in(worker.pid, worker.slot.dump_fd):
        return False
    signals.send_to_main_thread(worker.pid, signal.SIGUSR2)
    if worker.slot.has_event_loop:  # an event loop: only Python knows where its tasks wait
        worker.slot.task_dumps_requested += 1
        signals.send(worker.pid, signal.SIGUSR1)
    return True


def is_complete(worker: WorkerRecord) -> bool:
    """True if the dump was written to its end. If an event loop runs, what Python writes comes last."""
    if worker.slot.task_dumps_written != worker.slot.task_dumps_requested:
        return False
    return bool(worker.slot.has_event_loop) or worker.capture.is_dump_complete()


def begin_dump(worker: WorkerRecord, order: DumpStacks, now: float) -> StackDumped | None:
    """`DumpStacks` of the master: the answer comes when the file stops growing."""
    answer = partial(StackDumped, slot=order.slot, incarnation=order.incarnation, token=order.token)
    if suspend.is_stopped(worker):
        return answer(text="the worker is stopped (SIGSTOP); its stack cannot be read now")
    if not worker.is_ready:
        return answer(text="the worker is starting; it has no job yet")
    size = worker.capture.dump_size()
    if not write_stacks(worker):
        return answer(text=NO_DUMP_TEXT)
    worker.dump_requests.append(
        DumpRequest(token=order.token, start_size=size, last_size=size, give_up_at=now + 1.0)
    )
    return None


def finish_dumps(worker: WorkerRecord, now: float) -> list[SupervisorEvent]:
    events: list[SupervisorEvent] = []
    size = worker.capture.dump_size()
    for request in list(worker.dump_requests):
        quiet = size > request.start_size and size == request.last_size and is_complete(worker)
        request.last_size = size
        if not quiet and now < request.give_up_at:
            continue
        worker.dump_requests.remove(request)
        text = (
            worker.capture.stack(request.start_size) or "no stack: the worker did not answer within a second"
        )
        events.append(
            StackDumped(slot=worker.index, incarnation=worker.incarnation, token=request.token, text=text)
        )
        if not any(Rung.DUMP in stop.rung_times for stop in worker.stop_requests.values()):
            worker.capture.dump_start = size  # it is not the stack of a later death
    return events
