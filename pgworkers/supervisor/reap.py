"""The death of a worker: kill its group while the zombie pins it, reap, sweep its orphans, find the cause."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from pgworkers.process import scoreboard, signals, tree
from pgworkers.process.oom import Witness
from pgworkers.process.sweep import Sweep
from pgworkers.supervisor.ladder import Climb, Rung
from pgworkers.supervisor.member import Worker
from pgworkers.supervisor.messages import Died

#: A process that SIGKILL does not end within this time hangs in the kernel. It executes nothing more.
KERNEL_HANG_SECONDS = 2.0
#: Processes that are not even frozen after this time (they fork faster than they can be stopped) no longer hold up the end
#: of the job. What is there then is killed, the sweep goes on, and the slot stays empty until nothing is left.
SWEEP_GIVE_UP_SECONDS = 10.0
#: A death takes a moment. A longer sweep must not keep the loop from its deadlines: it goes on at the next tick.
SWEEP_SLICE_SECONDS = 0.02
_STEP = 0.0005
#: How an interpreter ends that reads memory which is not there.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


@dataclass(slots=True)
class Death:
    """A dead worker that still has its slot: its orphans are not all gone, or its death is not told yet."""

    fact: Died
    since: float
    told: bool = False
    stuck: set[int] = field(default_factory=set)  # children of ours that SIGKILL did not end in time


def bury(worker: Worker, witness: Witness, output_limit: int, now: float) -> Death:
    """Reap a dead worker and say what happened to it.

    One that was sent SIGKILL and does not die is not reaped here: the sweep does that when its call into the kernel ends.
    """
    signals.send_group(worker.pid, signal.SIGKILL)  # the zombie still pins the group's number
    status, usage = _wait(worker.pid)
    running = worker.slot.running()
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    climb = worker.climbs.get((running.job, running.lease)) if running.job else None
    reason = worker.killed if running.job else None
    if climb is not None and climb.times:
        reason = climb.reason
    capture = worker.capture
    fact = Died(
        slot=worker.index,
        pid=worker.pid,
        incarnation=worker.incarnation,
        job=running.job,
        lease=running.lease if running.job else 0,
        status=signals.name(ended_by) if ended_by else f"exit {os.WEXITSTATUS(status)}",
        signal=ended_by,
        ready=worker.ready,
        reason=reason,
        rungs=climb.record(struck=worker.slot.struck >= worker.slot.asked) if climb is not None else [],
        stopped=max(0.0, now - climb.wished) if climb is not None else 0.0,
        dumping=ended_by in _CRASHES and _was_dumping(worker, climb),
        oom=ended_by == signal.SIGKILL and worker.killed is None and witness.saw_kill(),
        stack=capture.stack(capture.dump_from) or None,
        output=capture.tail(running.output_from if running.job else 0, output_limit) or None,
        closed=bool(worker.slot.closed),
        limit=running.memory,
        used=worker.slot.used if reason == "memory" else 0,
    )
    if running.job:
        fact.duration = max(0.0, (scoreboard.now() - running.started) / 1e9)
        fact.cpu = round(max(0.0, usage.ru_utime + usage.ru_stime - running.cpu_before / 1e6), 6)
        fact.peak_rss = usage.ru_maxrss * 1024
    worker.slot.clear()
    return Death(fact, now)


def _was_dumping(worker: Worker, climb: Climb | None) -> bool:
    """Stacks were asked for and not seen whole. CPython reads the frames of running threads for them, without a lock."""
    if climb is not None and Rung.DUMP in climb.times and Rung.KILL not in climb.times:
        return True
    return bool(worker.dumps)


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    try:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if not found:
            return int(signal.SIGKILL), usage
    except ChildProcessError:
        # code of the app reaped our child: all we know is that it is gone
        return 0x7F00, resource.getrusage(resource.RUSAGE_CHILDREN)
    return status, usage


def sweep(strays: Sweep, spared: Collection[int], dead_groups: Collection[int]) -> tuple[int, list[int]]:
    """Kill what dead workers left behind: every child of ours that is not spared. (how many, the children that are left)"""
    total = 0
    until = time.monotonic() + SWEEP_SLICE_SECONDS
    while True:
        killed, left = strays.step(spared, dead_groups)
        total += killed
        if not left or time.monotonic() > until:
            return total, left
        time.sleep(_STEP)


def described_all(pids: Collection[int], most: int = 20) -> list[str]:
    """Processes for people. There may be thousands, and what is said of a death must fit in one packet."""
    names = [described(pid) for pid in sorted(pids)[:most]]
    return names if len(pids) <= most else [*names, f"{len(pids) - most} more"]


def described(pid: int) -> str:
    """A process for people: its number, its name and its state."""
    found = tree.stat(pid)
    try:
        name = tree.read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        name = "?"
    return f"{pid} ({name}, state {found.state if found is not None else '?'})"
