"""Stacks of a worker: ask for them, wait until they are written, read them, and cut our own frames.

The worker writes them (`enable_stack_dumps` in worker/startup.py) to a file without a name that outlives it.
"""

from __future__ import annotations

import os
import re
import signal
from functools import partial

from pgworkers.linux import memfd, signals
from pgworkers.supervisor.ladder import Rung
from pgworkers.supervisor.messages import DumpStacks, StackDumped, SupervisorEvent
from pgworkers.supervisor.worker_record import DumpRequest, WorkerRecord

_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Frames in these files are below every handler and always the same.
_OUR_FILES = tuple(f'  File "{_PACKAGE_DIRECTORY}/{name}' for name in ("worker/", "task.py", "supervisor/"))
#: One line. A dump that is cut at its end may have the beginning of it.
_EXTENSIONS = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
_HEARTBEAT = f'  File "{_PACKAGE_DIRECTORY}/worker/heartbeat.py"'
MAX_STACK_BYTES = 32 << 10
LAST_LINE_BYTES = 4096
#: The last line of a stack: where `python -m` begins, or what stands for more than faulthandler writes.
LAST_STACK_LINES = (b" in _run_module_as_main", b"  ...")


class StackDumpFile:
    """The file to which all stack dumps of one worker are appended."""

    def __init__(self, name: str) -> None:
        self.fd = memfd.create(f"pgworkers-dump-{name}")
        self.death_start = 0  # where the stack begins that is shown if the worker dies

    def size(self) -> int:
        return memfd.size(self.fd)

    def read(self, start: int) -> str:
        """What was written since `start`; of a long dump the beginning, where the thread is that runs the job."""
        end = min(self.size(), start + MAX_STACK_BYTES)
        if end == start:
            return ""  # of nearly every death
        return clean_dump(memfd.read_range(self.fd, start, end, MAX_STACK_BYTES).decode("utf-8", "replace"))

    def is_open_in(self, pid: int, fd: int) -> bool:
        """True if this descriptor of the worker is still the dump file.

        Its handler may have closed it.
        """
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), os.fstat(self.fd))
        except OSError:
            return False

    def ends_with_main_thread(self) -> bool:
        """True if the dump ends where a main thread began. faulthandler writes that thread last, and nothing after it."""
        end = self.size()
        last = memfd.read_range(self.fd, 0, end, LAST_LINE_BYTES).rstrip(b"\n").rpartition(b"\n")[2]
        return last.endswith(LAST_STACK_LINES)

    def close(self) -> None:
        os.close(self.fd)


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
    """All stacks into the dump file, by faulthandler's C code.

    A stopped process is continued for it.

    The signals come first: they wait for the process and are the first thing it does, even if it stops itself again.
    """
    worker.dump.death_start = worker.dump_size_seen = worker.dump.size()
    write_stacks(worker)
    if signals.is_stopped(worker.pid):
        signals.send_to_group(worker.pid, signal.SIGCONT)


def write_stacks(worker: WorkerRecord) -> bool:
    """By the main thread itself: another one could be stopped by it in the middle of the writing, and here
    faulthandler has finished before Python writes its part.

    False: the descriptor that faulthandler would write to is not the dump file any more, so nothing was asked for.
    """
    if not worker.dump.is_open_in(worker.pid, worker.slot.dump_fd):
        return False
    signals.send_to_main_thread(worker.pid, signal.SIGUSR2)
    if worker.slot.has_event_loop:  # an event loop: only Python knows where its tasks wait
        worker.slot.task_dumps_requested += 1
        signals.send(worker.pid, signal.SIGUSR1)
    return True


def is_complete(worker: WorkerRecord) -> bool:
    """True if the dump was written to its end.

    If an event loop runs, what Python writes comes last.
    """
    if worker.slot.task_dumps_written != worker.slot.task_dumps_requested:
        return False
    return bool(worker.slot.has_event_loop) or worker.dump.ends_with_main_thread()


def begin_dump(worker: WorkerRecord, order: DumpStacks, now: float) -> StackDumped | None:
    """`DumpStacks` of the master: the answer comes when the file stops growing."""
    answer = partial(StackDumped, slot=order.slot, incarnation=order.incarnation, token=order.token)
    if signals.is_stopped(worker.pid):
        return answer(text="the worker is stopped (SIGSTOP); its stack cannot be read now")
    if not worker.is_ready:
        return answer(text="the worker is starting; it has no job yet")
    size = worker.dump.size()
    if not write_stacks(worker):
        return answer(text=NO_DUMP_TEXT)
    worker.dump_requests.append(
        DumpRequest(token=order.token, start_size=size, last_size=size, give_up_at=now + 1.0)
    )
    return None


def finish_dumps(worker: WorkerRecord, now: float) -> list[SupervisorEvent]:
    events: list[SupervisorEvent] = []
    size = worker.dump.size()
    for request in list(worker.dump_requests):
        quiet = size > request.start_size and size == request.last_size and is_complete(worker)
        request.last_size = size
        if not quiet and now < request.give_up_at:
            continue
        worker.dump_requests.remove(request)
        text = worker.dump.read(request.start_size) or "no stack: the worker did not answer within a second"
        events.append(
            StackDumped(slot=worker.index, incarnation=worker.incarnation, token=request.token, text=text)
        )
        if not any(Rung.DUMP in stop.rung_times for stop in worker.stop_requests.values()):
            worker.dump.death_start = size  # it is not the stack of a later death
    return events
