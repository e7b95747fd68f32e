"""Processes that outlived their supervisor. As the subreaper of its tree the master inherits them: kill, then reap.

Where the master is PID 1 it also inherits strangers, of `docker exec` for instance: those are reaped, never killed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from pgworkers.master.child import MARKER
from pgworkers.process import tree
from pgworkers.supervisor.ask import BEING_BORN

STEP = 0.01


async def sweep(host: str, spared: Callable[[], set[int]]) -> int:
    """Kill every child that is not spared, and theirs, until none is left. How many were killed."""
    killed = 0
    while True:
        if BEING_BORN in (theirs := spared()):
            await asyncio.sleep(STEP)
            continue
        keep = theirs | (_strangers(host) if os.getpid() == 1 else set())
        now_killed, left = tree.kill_strays(keep)
        killed += now_killed
        if not left:
            return killed
        await asyncio.sleep(STEP)


def reap(spared: set[int]) -> None:
    """Take the zombies that nobody else waits for."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return  # there is none
    except ChildProcessError:
        return
    for child in tree.children(os.getpid()):
        if child not in spared:
            found = tree.stat(child)
            if found is not None and found.state == "Z":
                tree.reap(child)


def _strangers(host: str) -> set[int]:
    """Children of PID 1 that are not of this tree."""
    ours = set(tree.marked(MARKER, host))
    return {child for child in tree.children(os.getpid()) if child not in ours}
