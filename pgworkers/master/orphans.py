"""Processes that outlived their supervisor, or a former master of this machine (`end_former`).

The master is the subreaper of its tree, so it inherits those of a dead supervisor: it kills and reaps them.

Where the master is PID 1 it also inherits strangers, of `docker exec` for instance: those are reaped, never killed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from pgworkers.clock import monotonic
from pgworkers.process import origin, signals, tree
from pgworkers.process.sweep import Sweep
from pgworkers.supervisor.ask import BEING_BORN

STEP = 0.01
#: How long one call of `reap` may keep the loop from its other work.
REAP_SECONDS = 0.02
#: How long killed orphans of a dead supervisor are waited for.
KERNEL_HANG_SECONDS = 5.0
#: How long a start waits for processes of former hosts to be gone. One that SIGKILL does not end hangs in the kernel.
FORMER_HOST_SECONDS = 10.0


async def end_former(host: str) -> tuple[int, int]:
    """Kill what masters that are gone left on this machine. Returns how many were killed, and how many are still there.

    A worker whose handler cleared its death signal and holds the GIL outlives a master and a supervisor that were killed
    at the same moment.
    """
    killed: set[tuple[int, int]] = set()
    give_up = monotonic() + FORMER_HOST_SECONDS
    while found := origin.orphans(host):
        for pid, started in found.items():
            if signals.kill_identified(pid, started):
                killed.add((pid, started))
        if monotonic() > give_up:
            break
        await asyncio.sleep(STEP)
    return len(killed), len(found)


async def sweep(host: str, spared: Callable[[], set[int]]) -> int:
    """Kill every child that is not spared, and theirs, until none is left. How many were killed.

    Processes that SIGKILL does not end hang in the kernel and execute nothing more: they are not waited for.
    """
    killed = 0
    strays = Sweep()
    give_up = monotonic() + KERNEL_HANG_SECONDS
    while True:
        if BEING_BORN in (theirs := spared()):
            await asyncio.sleep(STEP)
            continue
        keep = theirs | (_strangers(host) if os.getpid() == 1 else set())
        now_killed, left = strays.step(keep)
        killed += now_killed
        if not left or (strays.is_waiting and monotonic() > give_up):
            return killed
        await asyncio.sleep(STEP)


def reap(spared: set[int]) -> None:
    """Reap the zombies that nothing else waits for. Those that take longer than REAP_SECONDS are left to the next call."""
    if BEING_BORN in spared:
        return
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return  # there is none
    except ChildProcessError:
        return
    until = monotonic() + REAP_SECONDS
    for child in tree.children(os.getpid()):
        if child not in spared:
            tree.reap(child)
            if monotonic() > until:
                return


def _strangers(host: str) -> set[int]:
    """Children of PID 1 that are not of this tree."""
    children = tree.children(os.getpid())
    return set(children).difference(tree.marked(origin.VARIABLE, f"{host}/", among=children))
