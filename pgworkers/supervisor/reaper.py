"""The death of a worker: kill its group while the zombie pins it, reap, sweep its orphans, find the cause."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from pgworkers import clock
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.linux import proc, signals
from pgworkers.linux.oom import OomKillCounter
from pgworkers.linux.sweep import KERNEL_HANG_SECONDS, SWEEP_TIMEOUT_SECONDS, ProcessSweep
from pgworkers.supervisor.ladder import Rung, StopRequest
from pgworkers.supervisor.messages import Died
from pgworkers.supervisor.worker_record import WorkerRecord


def is_dead(worker: WorkerRecord) -> bool:
    """True if it is dead and not reaped: its pid and its group are still its own."""
    try:
        return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


#: A longer sweep goes on at the next tick, so that the loop keeps its deadlines.
SWEEP_SLICE_SECONDS = 0.02
SWEEP_POLL_SECONDS = 0.0005
#: How an interpreter ends that reads memory which is not there.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


@dataclass(slots=True)
class Death:
    """A dead worker that still has its slot: its orphans are not all gone, or its death is not reported yet."""

    event: Died
    died_at: float
    is_emitted: bool = False
    stuck: set[int] = field(default_factory=set)  # children that SIGKILL did not end in time


class Reaper:
    """Dead workers that still have their slots, and the sweep of what they left."""

    def __init__(self, emit: Callable[[Died], None]) -> None:
        self._emit = emit
        self._sweep = ProcessSweep(is_single_threaded=True)
        self._swept_count = 0
        self.dying: dict[int, Death] = {}  # by slot
        #: Children that are not killed while the supervisor runs: those that the import of the app started.
        self.spared = set(proc.children(os.getpid()))

    @property
    def unreported(self) -> list[Death]:
        """Deaths that were not reported to the master yet."""
        return [death for death in self.dying.values() if not death.is_emitted]

    def add(self, death: Death, living: set[int]) -> None:
        """Take over the slot of a worker that was reaped. `living`: pids of the other workers."""
        death.event.killed_children = proc.describe_children(self.spared | living)
        self.dying[death.event.slot] = death

    def sweep(self, living: set[int], now: float) -> None:
        """End what dead workers left, and report each death when nothing of the worker is alive."""
        # A worker that died after the last check has its group killed at the next tick. What is in its group is not a stray.
        groups = living | {death.event.pid for death in self.dying.values()}
        stuck = {pid for death in self.dying.values() for pid in death.stuck}
        killed, left = sweep_slice(self._sweep, self.spared | living | stuck, groups)
        self._swept_count += killed
        self._emit_deaths(left, groups, now)

    def _emit_deaths(self, left: list[int], groups: set[int], now: float) -> None:
        """Report deaths when nothing of the workers is left, or only what SIGKILL does not end.

        Then free their slots.

        The kernel does not name the former owner of an orphan. So what is left counts for every worker that is dying.
        Processes that we may not signal are named, and from then on left alone: they keep no slot.
        """
        limit = KERNEL_HANG_SECONDS if self._sweep.is_waiting_for_kernel else SWEEP_TIMEOUT_SECONDS
        unreported = self.unreported
        if left and all(now - death.died_at < limit for death in unreported):
            unreported = []
        stuck = self._sweep.unkillable(left) if unreported else set()
        foreign = self._sweep.not_permitted(left) if unreported else set()
        if unreported and left and not self._sweep.is_waiting_for_kernel:  # some are frozen and would stay so
            self._swept_count += self._sweep.kill(left, groups)
        if unreported:
            self.spared |= foreign
        for death in unreported:
            death.stuck |= stuck
            death.event.stuck = describe_processes(death.stuck)
            death.event.foreign = describe_processes(foreign)
            death.event.killed_children = _without_pids(death.event.killed_children, foreign)
            death.event.swept, self._swept_count = self._swept_count, 0
            death.is_emitted = True
            self._emit(death.event)
        for slot, death in list(self.dying.items()):
            death.stuck = {pid for pid in death.stuck if not proc.reap(pid)}
            if death.is_emitted and not death.stuck and not left:
                del self.dying[slot]

    def reap_spared(self) -> None:
        """Reap children of the app that have ended."""
        self.spared = {pid for pid in self.spared if not proc.reap(pid)}


def _without_pids(names: list[str], pids: set[int]) -> list[str]:
    """Names of children (`ffmpeg (pid 812)`) without those of these processes."""
    return [name for name in names if not any(name.endswith(f" (pid {pid})") for pid in pids)]


def reap_worker(worker: WorkerRecord, oom_counter: OomKillCounter, output_limit: int, now: float) -> Death:
    """Reap a dead worker and say what happened to it.

    One that was sent SIGKILL and does not die is not reaped here: the sweep does that when its call into the kernel ends.
    """
    signals.send_to_group(worker.pid, signal.SIGKILL)  # the zombie still pins the group's number
    status, usage = _wait(worker.pid)
    running = worker.slot.read_job()
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    request = worker.stop_requests.get(running.key) if running.job else None
    reason = worker.kill_reason if running.job else None
    if request is not None and request.rung_times:
        reason = request.reason
    event = Died(
        slot=worker.index,
        pid=worker.pid,
        incarnation=worker.incarnation,
        job=running.job,
        lease=running.lease if running.job else 0,
        status=signals.signal_name(ended_by) if ended_by else f"exit {os.WEXITSTATUS(status)}",
        signal=ended_by,
        was_ready=worker.is_ready,
        reason=reason,
        rungs=request.rungs_taken(
            was_raised=worker.slot.job_stopped_raised_at >= worker.slot.stop_requested_at
        )
        if request is not None
        else [],
        stop_seconds=max(0.0, now - request.requested_at) if request is not None else 0.0,
        is_dumping=ended_by in _CRASHES and _was_dumping(worker, request),
        is_oom=ended_by == signal.SIGKILL and worker.kill_reason is None and oom_counter.has_grown(),
        stack=worker.dump.read(worker.dump.death_start) or None,
        output=worker.capture.tail(running.output_start if running.job else 0, output_limit) or None,
        has_closed_channel=bool(worker.slot.has_closed_channel),
        memory_limit=running.memory_limit,
        memory_used=worker.slot.memory_used if reason is StopReason.MEMORY else 0,
    )
    if running.job:
        event.duration = max(0.0, (clock.boottime_ns() - running.started_at) / 1e9)
        event.cpu = round(max(0.0, usage.ru_utime + usage.ru_stime - running.cpu_at_start / 1e6), 6)
        event.peak_rss = usage.ru_maxrss * 1024
    worker.slot.clear()
    return Death(event, now)


def _was_dumping(worker: WorkerRecord, request: StopRequest | None) -> bool:
    """Stacks were asked for and not seen whole.

    CPython reads the frames of running threads for them, without a lock.
    """
    if request is not None and Rung.DUMP in request.rung_times and Rung.KILL not in request.rung_times:
        return True
    return bool(worker.dump_requests)


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    try:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if not found:
            return int(signal.SIGKILL), usage
    except ChildProcessError:
        # code of the app reaped our child: all we know is that it is gone
        return 0x7F00, resource.getrusage(resource.RUSAGE_CHILDREN)
    return status, usage


def sweep_slice(
    strays: ProcessSweep, spared: Collection[int], dead_groups: Collection[int]
) -> tuple[int, list[int]]:
    """Kill what dead workers left behind: every child of ours that is not spared. (how many, the children that are left)"""
    total = 0
    until = time.monotonic() + SWEEP_SLICE_SECONDS
    while True:
        killed, left = strays.step(spared, dead_groups)
        total += killed
        if not left or time.monotonic() > until:
            return total, left
        time.sleep(SWEEP_POLL_SECONDS)


def describe_processes(pids: Collection[int], limit: int = 20) -> list[str]:
    """Processes for people.

    There may be thousands, and the report of a death must fit in one packet.
    """
    names = [describe_process(pid) for pid in sorted(pids)[:limit]]
    return names if len(pids) <= limit else [*names, f"{len(pids) - limit} more"]


def describe_process(pid: int) -> str:
    """A process for people: its number, its name and its state."""
    found = proc.read_stat(pid)
    try:
        name = proc.read_file(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        name = "?"
    return f"{pid} ({name}, state {found.state if found is not None else '?'})"
