"""End the processes that a dead worker, or a handler, left behind: stop all of them, then kill all of them.

Used by worker/cleanup.py after a job, by supervisor/reaper.py after the death of a worker and by master/orphan_processes.py.

A process that is killed while its relatives run can be replaced by them: a child that watches its sibling starts another,
and a process that forks a successor and exits is gone before it can be signalled. So every stray is sent SIGSTOP first,
with all of its descendants, until a whole pass finds none that runs. A stopped process forks nothing. Only then SIGKILL
is sent, to all of them. Strays are children of this process, which is their subreaper: when a stray dies, its own
children become ours.

A process that forks its successor and ends is faster than a check of each process. But its successors stay in its group.
So the group of a stray is stopped as a whole, which no fork evades, if all of its members descend from strays. They do if
the leader of its session does, or is gone, and the session is neither ours nor that of a spared child. Otherwise
the group may contain processes of a spared child, or processes that are not below this one.

Beyond these groups, each stray and each of its descendants is signalled by itself. A child of ours keeps its pid, and the
number of its group, until we reap it. A deeper descendant is signalled through a pidfd, after a second check that it is
still the process that was found.

Adopted children (`AdoptedChildReaper`): processes that became children of this process when their parent died.

A worker is a subreaper: orphans of its handler become its children, and the handler does not know them. If they end by
the thousand while a job runs, their zombies fill the machine's table of processes. But the handler's own children must be
left to it: it wants their exit status.

The kernel does not say which process forked another, but the session does. A child inherits the session of its parent. It
leaves it only by setsid(), and then the number of its session is its own pid. So a child whose session is neither ours nor
its own was forked by another process. Our session is the one at the start of the worker, or has our own pid if the handler
called setsid() in the worker. An orphan that stayed in our session, or leads its own, looks like a child of the handler.
It stays a zombie until the job is over.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable

from pgworkers.linux import proc
from pgworkers.linux.proc import ProcessStat

#: A process that SIGKILL does not end within this time hangs in the kernel. It executes nothing more.
KERNEL_HANG_SECONDS = 2.0
#: Processes that are not even frozen after this time (they fork faster than they can be stopped) no longer hold up the end
#: of the job. A supervisor kills what is there then, goes on sweeping, and keeps the slot empty until nothing is left. A
#: worker takes no other job.
SWEEP_TIMEOUT_SECONDS = 10.0
#: From then on strays are killed although some of them still run.
FREEZE_TIMEOUT_SECONDS = 1.0
#: How often one step looks for children that are new, at most.
MAX_CATCH_ROUNDS = 20
#: A dead worker may leave tens of thousands of zombies. After this time, and this many of them, reaping them goes on in the
#: next step, so that the caller can do its other work. The number is for a starved machine, where time passes without work.
REAP_SLICE_SECONDS = 0.02
REAP_SLICE_COUNT = 1000
#: After this many SIGSTOPs a process in one of these states counts as stopped. `vfork` holds a parent in D until its child
#: goes on. A zombie may have forked just before; one that cannot be reaped has threads that live.
MAX_SIGSTOPS_BY_STATE = {"D": 3, "Z": 1, "X": 1, "x": 1}


class ProcessSweep:
    """The strays of this process, ended step by step. Repeat `step` until none is left."""

    def __init__(
        self, *, is_single_threaded: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_single_threaded = is_single_threaded  # this process has one thread
        self._clock = clock
        self._freezing_since: float | None = None
        self._is_reaping = False  # the last step left zombies to the next one
        self._caught: set[int] = set()  # children that were sent a signal and are not reaped
        self._groups: set[int] = set()  # that were stopped
        self._stops: dict[int, tuple[int, int]] = {}  # by pid: when it started, SIGSTOPs sent to it
        self._killed: dict[
            int, int
        ] = {}  # by pid: when it started. Sent SIGKILL and not reaped; each is counted once
        self._not_permitted: dict[
            int, int
        ] = {}  # those of `_killed` that are another user's: by pid, when it started

    @property
    def is_waiting_for_kernel(self) -> bool:
        """True if all that was found has been sent SIGKILL, so only the kernel can end it."""
        return self._freezing_since is None and not self._is_reaping

    def step(self, spared: Collection[int], dead_groups: Collection[int] = ()) -> tuple[int, list[int]]:
        """Reap, freeze or kill what is there. Returns how many were killed now, and the children that are left.

        `spared` children and their descendants are left alone. Members of `dead_groups`, whose group was killed before, are
        not counted as killed.
        """
        left = self._catch(spared)
        if self._is_reaping:
            return 0, left
        if not left:
            self._freezing_since = None
            self._caught.clear()
            self._groups.clear()
            self._stops.clear()
            self._killed.clear()
            self._not_permitted.clear()
            return 0, []
        found = self._not_killed(left)
        if not found:
            self._freezing_since = None
            return 0, left
        if self._freeze(found):
            return 0, left
        return self._kill(found, dead_groups), left

    def kill(self, children: Iterable[int], dead_groups: Collection[int] = ()) -> int:
        """Kill these children and everything below them as they are, frozen or not. Returns how many were killed now."""
        self._is_reaping = False
        return self._kill(
            self._not_killed([child for child in children if not self._reap(child)]), dead_groups
        )

    def unkillable(self, children: Iterable[int]) -> set[int]:
        """Those of our children that were sent SIGKILL and are still there."""
        return {
            one.pid
            for one in _stats(child for child in children if child in self._killed)
            if self._killed.get(one.pid) == one.start_ticks
            and self._not_permitted.get(one.pid) != one.start_ticks
        }

    def not_permitted(self, children: Iterable[int]) -> set[int]:
        """Those of our children that we may not signal: they are another user's."""
        known = (child for child in children if child in self._not_permitted)
        return {one.pid for one in _stats(known) if self._not_permitted.get(one.pid) == one.start_ticks}

    def _not_killed(self, children: Iterable[int]) -> list[ProcessStat]:
        return [one for one in _with_descendants(children) if self._killed.get(one.pid) != one.start_ticks]

    def _catch(self, spared: Collection[int]) -> list[int]:
        """Stop and reap children until no new one appears and none ends. Those that are left.

        Nothing else is done meanwhile: a child that forks its successor and ends may live for less than a millisecond. The
        newest children are the last in the list and come first here: they run, while a crowd of zombies can wait.
        """
        until = self._clock() + REAP_SLICE_SECONDS
        sessions = {_session(pid) for pid in (0, *spared)}
        left: list[int] = []
        reaped = 0
        self._is_reaping = False
        for _ in range(MAX_CATCH_ROUNDS):
            strays = [child for child in self._children() if child not in spared]
            left, is_new = [], False
            for index in reversed(range(len(strays))):
                child = strays[index]
                self._stop_group(child, spared, sessions)
                if self._reap(child):
                    reaped += 1
                    if reaped % REAP_SLICE_COUNT == 0 and self._clock() > until:
                        self._is_reaping = True
                        return strays[:index] + left[::-1]
                    continue
                left.append(child)
                if child not in self._caught:
                    is_new = True
                    _send(child, signal.SIGSTOP)
                    self._caught.add(child)
            left.reverse()
            if not is_new and len(left) == len(strays):  # one that was reaped may have left us children
                break
        return left

    def _stop_group(self, child: int, spared: Collection[int], sessions: set[int | None]) -> None:
        """Stop the group of a stray if that hits only strays. `sessions` are those in which it may hit others."""
        try:
            group, session = os.getpgid(child), os.getsid(child)
            if group in self._groups or session in sessions:
                return
            if group <= 1 or not (_session(session) is None or _is_below_stray(session, spared)):
                sessions.add(session)
                return
            self._groups.add(group)
            os.killpg(group, signal.SIGSTOP)
        except OSError:
            pass  # not a child of ours any more, or a group of another user: each process is signalled by itself

    def _children(self) -> list[int]:
        return proc.children_of_this_thread() if self._is_single_threaded else proc.children(os.getpid())

    def _reap(self, child: int) -> bool:
        if not proc.reap(child):
            return False
        self._caught.discard(child)
        self._stops.pop(child, None)
        self._killed.pop(child, None)
        self._not_permitted.pop(child, None)
        return True

    def _freeze(self, found: list[ProcessStat]) -> bool:
        """Send SIGSTOP to those that run. True: wait, and look again."""
        now = self._clock()
        if self._freezing_since is None:
            self._freezing_since = now
        wait = False
        for one in found:
            started, stops = self._stops.get(one.pid, (one.start_ticks, 0))
            stops = stops if started == one.start_ticks else 0
            if one.state not in "Tt" and stops < MAX_SIGSTOPS_BY_STATE.get(one.state, sys.maxsize):
                self._stops[one.pid] = one.start_ticks, stops + 1
                wait = _send_to(one, signal.SIGSTOP) is not False or wait
        return wait and now - self._freezing_since < FREEZE_TIMEOUT_SECONDS

    def _kill(self, found: list[ProcessStat], dead_groups: Collection[int]) -> int:
        killed = 0
        for one in found:
            self._stops.pop(one.pid, None)
            self._killed[one.pid] = one.start_ticks
            sent = _send_to(one, signal.SIGKILL)
            if sent is False:
                self._not_permitted[one.pid] = one.start_ticks
            elif sent and one.state not in "ZXx":
                killed += one.process_group not in dead_groups
        self._freezing_since = None
        return killed


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_below_stray(pid: int, spared: Collection[int]) -> bool:
    """True if this process is a child of ours that is not spared, or descends from one."""
    while pid not in spared and (found := proc.read_stat(pid)) is not None:
        if found.ppid == os.getpid():
            return True
        pid = found.ppid
    return False


def _stats(pids: Iterable[int]) -> list[ProcessStat]:
    return [one for pid in pids if (one := proc.read_stat(pid)) is not None]


def _with_descendants(children: Iterable[int]) -> list[ProcessStat]:
    """These children and everything below them, as one pass sees it.

    Zombies below them are left out: they run nothing, and become our children when their parent dies.
    """
    found = _stats(children)
    for parent in found:
        below = _stats(proc.children(parent.pid))
        if below and _is_same(parent):  # else the list was of another process with its pid
            found += [one for one in below if one.ppid == parent.pid and one.state not in "ZXx"]
    return found


def _is_same(one: ProcessStat) -> bool:
    now = proc.read_stat(one.pid)
    return now is not None and now.start_ticks == one.start_ticks


def _send_to(one: ProcessStat, number: int) -> bool | None:
    """Signal a process that was found. None: it is gone. False: it is another user's."""
    if one.ppid == os.getpid():
        return _send(one.pid, number)
    try:
        pidfd = os.pidfd_open(one.pid)
    except OSError:
        return None
    try:
        if not _is_same(one):
            return None
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return None
    except PermissionError:
        return False
    finally:
        os.close(pidfd)
    return True


def _send(child: int, number: int) -> bool | None:
    """Signal a child of ours that we have not reaped."""
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return None
    except PermissionError:
        return False
    return True


#: Held by the thread that reaps. A sweep signals children by pid, so no other thread may reap them meanwhile.
REAP_LOCK = _thread.allocate_lock()


class AdoptedChildReaper:
    """The adopted children of this process. To be made before the code runs that starts children."""

    def __init__(self) -> None:
        self._session = os.getsid(0)

    def reap(self, time_limit: float) -> bool:
        """Reap those that ended. Returns True if some were reaped and there may be more after this time."""
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False  # the common case costs one system call
        except ChildProcessError:
            return False
        until = time.monotonic() + time_limit
        has_reaped = False
        for child in proc.children(os.getpid()):
            has_reaped = self._reap(child) or has_reaped
            if time.monotonic() > until:
                return has_reaped
        return False

    def _reap(self, child: int) -> bool:
        """Reap one child, if it is adopted. Its pid is not reused before it is reaped."""
        if not REAP_LOCK.acquire(blocking=False):
            return False  # the main thread sweeps, which may take longer than a heartbeat may be silent
        try:
            return os.getsid(child) not in (self._session, os.getpid(), child) and proc.reap(child)
        except OSError:
            return False  # the handler reaped it
        finally:
            REAP_LOCK.release()
