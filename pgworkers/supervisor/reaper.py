"""The death of a worker: kill its group while the zombie pins it, reap, sweep its orphans, find the cause."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from pgworkers import clock
from pgworkers.linux import proc, signals
from pgworkers.linux.oom import OomKillCounter
from pgworkers.linux.sweep import ProcessSweep
from pgworkers.supervisor.ladder import Rung, StopRequest
from pgworkers.supervisor.messages import Died
from pgworkers.supervisor.worker_record import WorkerRecord


def is_dead(worker: WorkerRecord) -> bool:
    """Dead, not reaped: its pid and its group are still its own."""
    try:
        return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


#: A death takes a moment. A longer sweep must not keep the loop from its deadlines: it goes on at the next tick.
SWEEP_SLICE_SECONDS = 0.02
SWEEP_POLL_SECONDS = 0.0005
#: How an interpreter ends that reads memory which is not there.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


@dataclass(slots=True)
class Death:
    """A dead worker that still has its slot: its orphans are not all gone, or its death is not told yet."""

    fact: Died
    died_at: float
    is_emitted: bool = False
    stuck: set[int] = field(default_factory=set)  # children of ours that SIGKILL did not end in time


def reap_worker(worker: WorkerRecord, oom_counter: OomKillCounter, output_limit: int, now: float) -> Death:
    """Reap a dead worker and say what happened to it.

    One that was sent SIGKILL and does not die is not reaped here: the sweep does that when its call into the kernel ends.
    """
    signals.send_to_group(worker.pid, signal.SIGKILL)  # the zombie still pins the group's number
    status, usage = _wait(worker.pid)
    running = worker.slot.read_job()
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    climb = worker.stop_requests.get((running.job, running.lease)) if running.job else None
    reason = worker.kill_reason if running.job else None
    if climb is not None and climb.rung_times:
        reason = climb.reason
    capture = worker.capture
    fact = Died(
        slot=worker.index,
        pid=worker.pid,
        incarnation=worker.incarnation,
        job=running.job,
        lease=running.lease if running.job else 0,
        status=signals.signal_name(ended_by) if ended_by else f"exit {os.WEXITSTATUS(status)}",
        signal=ended_by,
        was_ready=worker.is_ready,
        reason=reason,
        rungs=climb.rungs_taken(was_raised=worker.slot.job_stopped_raised_at >= worker.slot.stop_requested_at)
        if climb is not None
        else [],
        stop_seconds=max(0.0, now - climb.requested_at) if climb is not None else 0.0,
        dumping=ended_by in _CRASHES and _was_dumping(worker, climb),
        is_oom=ended_by == signal.SIGKILL and worker.kill_reason is None and oom_counter.has_grown(),
        stack=capture.stack(capture.dump_start) or None,
        output=capture.tail(running.output_start if running.job else 0, output_limit) or None,
        has_closed_channel=bool(worker.slot.has_closed_channel),
        memory_limit=running.memory_limit,
        memory_used=worker.slot.memory_used if reason == "memory" else 0,
    )
    if running.job:
        fact.duration = max(0.0, (clock.boottime_ns() - running.started_at) / 1e9)
        fact.cpu = round(max(0.0, usage.ru_utime + usage.ru_stime - running.cpu_at_start / 1e6), 6)
        fact.peak_rss = usage.ru_maxrss * 1024
    worker.slot.clear()
    return Death(fact, now)


def _was_dumping(worker: WorkerRecord, climb: StopRequest | None) -> bool:
    """Stacks were asked for and not seen whole. CPython reads the frames of running threads for them, without a lock."""
    if climb is not None and Rung.DUMP in climb.rung_times and Rung.KILL not in climb.rung_times:
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
    """Processes for people. There may be thousands, and what is said of a death must fit in one packet."""
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
