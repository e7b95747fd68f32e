"""The death of a worker: kill its group while the zombie pins it, reap, sweep its orphans, find the cause."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from pgworkers.process import scoreboard, signals, tree
from pgworkers.process.oom import Witness
from pgworkers.supervisor.member import Worker
from pgworkers.supervisor.messages import Died

#: A process that SIGKILL does not end hangs in the kernel; the story goes on without it.
SWEEP_TIME = 2.0
_ROUNDS = 20  # a death takes a moment; more must not keep the loop from its deadlines
_STEP = 0.0005


@dataclass(slots=True)
class Death:
    """A reaped worker whose orphans are not all gone yet."""

    fact: Died
    until: float


def bury(worker: Worker, witness: Witness, output_limit: int, now: float) -> Death:
    """Reap a dead worker and say what happened to it. Its slot is free afterwards."""
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
        job=running.job,
        lease=running.lease if running.job else 0,
        status=signals.name(ended_by) if ended_by else f"exit {os.WEXITSTATUS(status)}",
        signal=ended_by,
        ready=worker.ready,
        reason=reason,
        rungs=climb.rungs if climb is not None else [],
        stopped=max(0.0, now - climb.wished) if climb is not None else 0.0,
        oom=ended_by == signal.SIGKILL and worker.killed is None and witness.saw_kill(),
        stack=capture.stack(capture.dump_from) or None,
        output=capture.tail(running.output_from if running.job else 0, output_limit) or None,
        closed=bool(worker.slot.closed),
    )
    if running.job:
        fact.duration = max(0.0, (scoreboard.now() - running.started) / 1e9)
        fact.cpu = round(max(0.0, usage.ru_utime + usage.ru_stime - running.cpu_before / 1e6), 6)
        fact.peak_rss = usage.ru_maxrss * 1024
    worker.slot.clear()
    return Death(fact, now + SWEEP_TIME)


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        # code of the app reaped our child: all we know is that it is gone
        return 0x7F00, resource.getrusage(resource.RUSAGE_CHILDREN)
    return status, usage


def sweep(spared: set[int], dead_groups: Collection[int]) -> tuple[int, bool]:
    """Kill what dead workers left behind: every child of ours that is not spared. (killed, nothing is left)"""
    total = 0
    for _ in range(_ROUNDS):
        killed, found = tree.kill_strays(spared, dead_groups, alone=True)
        total += killed
        if found == 0:
            return total, True
        time.sleep(_STEP)
    return total, False
