"""Reaping what became a child of this process when its parent died.

A worker is a subreaper: orphans of its handler become its children, and the handler does not know them. If they end by
the thousand while a job runs, their zombies fill the machine's table of processes. But the handler's own children must be
left to it: it wants their exit status.

The kernel does not say which process forked another, but the session does. A child inherits the session of its parent. It
leaves it only by setsid(), and then the number of its session is its own pid. So a child whose session is neither ours nor
its own was forked by another process. Our session is the one at the start of the worker, or has our own pid if the handler
called setsid() in the worker. An orphan that stayed in our session, or leads its own, cannot be told from a child of the
handler. It stays a zombie until the job is over.
"""

from __future__ import annotations

import _thread
import os
import time

from pgworkers.process import tree

#: Held by the thread that reaps. A sweep signals children by pid, so no other thread may reap them meanwhile.
REAPING = _thread.allocate_lock()


class Adopted:
    """The adopted children of this process. To be made before the code runs that starts children."""

    def __init__(self) -> None:
        self._session = os.getsid(0)

    def reap(self, seconds: float) -> bool:
        """Reap those that ended. Returns True if some were reaped and there may be more after this time."""
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False  # the common case costs one system call
        except ChildProcessError:
            return False
        until = time.monotonic() + seconds
        has_reaped = False
        for child in tree.children(os.getpid()):
            has_reaped = self._reap(child) or has_reaped
            if time.monotonic() > until:
                return has_reaped
        return False

    def _reap(self, child: int) -> bool:
        """Reap one child, if it is adopted. Its pid is not reused before it is reaped."""
        if not REAPING.acquire(blocking=False):
            return False  # the main thread sweeps, which may take longer than a heartbeat may be silent
        try:
            return os.getsid(child) not in (self._session, os.getpid(), child) and tree.reap(child)
        except OSError:
            return False  # the handler reaped it
        finally:
            REAPING.release()
