"""What a handler must not leave for the next job.

A snapshot of the process is taken once, after the start hooks; after each job the differences are put back.
`check_everything` answers whether all of it could be undone.

A look at everything costs two dozen system calls. After a job of less than `SHORT_JOB_NS` that changed nothing from
Python (`noting`) a check of what costs nothing to read and is not noted is enough (`after_job`), and everything is
looked at a millisecond later, or as soon as the worker rests. In that time nothing can have been forked, and C code that
changed the process is seen by the jobs of one millisecond.
"""

from __future__ import annotations

import importlib
import locale
import os
import random
import resource
import signal
import sys
import time
from resource import getrlimit
from typing import Any

from pgworkers.linux import proc
from pgworkers.linux.descriptors import OwnedDescriptor
from pgworkers.linux.sweep import REAP_LOCK, ProcessSweep
from pgworkers.worker import noting
from pgworkers.worker.startup import enable_stack_dumps, redirect_streams, restore_dump_signal

# The same functions without the wrappers that make enums of everything: they run after every job.
_c_signal: Any = importlib.import_module("_signal")
_c_locale: Any = importlib.import_module("_locale")
_SIGNALS = [
    int(s) for s in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - set(range(32, 65)))
]
_RLIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
INTERVAL_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: Children that were sent SIGKILL are waited for this long; those that cannot even be frozen, this long.
KERNEL_HANG_SECONDS = 2.0
SWEEP_TIMEOUT_SECONDS = 10.0
SHORT_JOB_NS = 100_000  #: nanoseconds, like all times here
CHECK_INTERVAL_NS = 1_000_000
_recursion = sys.getrecursionlimit
_noted = noting.noted
_MARK = random.getrandbits(40) | 1 << 40  # a position that no file of ours has
SWEEP_POLL_SECONDS = 0.001


class ProcessCleanup:
    def __init__(self, output: OwnedDescriptor, dump: OwnedDescriptor) -> None:
        self._output = output
        self._dump = dump
        self._streams = os.fstat(output.fd)
        self._cwd = os.getcwd()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._environ = dict(os.environb)
        # the environment's own dictionary: comparing it decodes nothing
        self._data: dict[bytes, bytes] = os.environb._data  # type: ignore[attr-defined]
        self._handlers = list(map(_c_signal.getsignal, _SIGNALS))
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._limits = list(map(getrlimit, _RLIMITS))
        self._cores = os.sched_getaffinity(0)
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._users = os.getresuid(), os.getresgid()
        self._locale = locale.setlocale(locale.LC_ALL)
        self._recursion = sys.getrecursionlimit()
        self._std = sys.stdin, sys.stdout, sys.stderr
        self.children = set(proc.children(os.getpid()))
        self._next_check_at = 0  # at everything
        self.was_last_check_partial = False  # was the last look a glance?
        self.output_end = 0  # where the output of the last job ended

    def after_job(self, now: int) -> bool:
        """After a job of less than BRIEF: is there nothing to put back, as far as that can be seen at once?

        What the job has written is in the capture file then. False: look at everything.
        """
        stdin, stdout, stderr = self._std
        if (
            now >= self._next_check_at
            or _noted[0]
            or sys.stdout is not stdout
            or sys.stderr is not stderr
            or sys.stdin is not stdin
            or _recursion() != self._recursion
        ):
            return False
        try:
            stdout.flush()
            stderr.flush()
        except (OSError, ValueError, AttributeError):
            return False  # the handler closed one
        end = self._output.size()
        if end is None:
            return False
        self.output_end = end
        self.was_last_check_partial = True
        return True

    def check_everything(self, now: int) -> bool:
        """Put everything back. False: this process is not fit for another job."""
        self.was_last_check_partial = False
        fit = self._restore_everything() and self._dump.is_still_ours()
        self._next_check_at = now + CHECK_INTERVAL_NS
        _noted[0] = False  # of what we did ourselves, too
        return fit

    def before_wait(self) -> bool:
        """Before the worker waits for its next job: what a glance has left out."""
        return not self.was_last_check_partial or self.check_everything(0)

    def _restore_everything(self) -> bool:
        try:
            self._restore_environment()
            self._restore_recursion()
            if _c_locale.setlocale(locale.LC_ALL) != self._locale:
                locale.setlocale(locale.LC_ALL, self._locale)
            self._restore_signals()
            self._restore_streams()
            os.umask(self._umask)
            if os.sched_getaffinity(0) != self._cores:
                os.sched_setaffinity(0, self._cores)
            if self._has_changed_directory():
                os.chdir(self._cwd)
            if os.getpriority(os.PRIO_PROCESS, 0) != self._nice:
                os.setpriority(os.PRIO_PROCESS, 0, self._nice)
            if list(map(getrlimit, _RLIMITS)) != self._limits:
                for kind, limit in zip(_RLIMITS, self._limits, strict=True):
                    resource.setrlimit(kind, limit)
            return sweep_children(self.children) and (os.getresuid(), os.getresgid()) == self._users
        except (OSError, ValueError):
            return False  # its result counts all the same

    def _has_changed_directory(self) -> bool:
        try:
            return os.getcwd() != self._cwd
        except FileNotFoundError:
            return True  # the handler went into a directory and removed it

    def _restore_environment(self) -> None:
        if self._data != self._environ:
            for name in set(os.environb) - set(self._environ):
                del os.environb[name]
            for name, value in self._environ.items():
                if os.environb.get(name) != value:
                    os.environb[name] = value

    def _restore_recursion(self) -> None:
        if _recursion() != self._recursion:
            sys.setrecursionlimit(self._recursion)

    def _restore_signals(self) -> None:
        stop_timers()
        watch = enable_stack_dumps
        if list(map(_c_signal.getsignal, _SIGNALS)) != self._handlers:
            for signum, handler in zip(_SIGNALS, self._handlers, strict=True):
                if _c_signal.getsignal(signum) is not handler and handler is not None:
                    signal.signal(signum, handler)
                    watch = restore_dump_signal if signum == signal.SIGUSR2 else watch
        _c_signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        watch(self._dump)

    def _restore_streams(self) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._std
        self._output.check()
        if not self._streams_are_ours():
            redirect_streams(self._output.fd)
        self.output_end = self._output.size() or 0

    def _streams_are_ours(self) -> bool:
        """Are stdout and stderr still the capture file?

        They are one open file with one position, which means nothing, for everybody appends: a mark there is cheaper
        than asking for all there is to know. Where it is not found (somebody just wrote, or it is another file), ask.
        """
        try:
            os.lseek(self._output.fd, _MARK, os.SEEK_SET)
            if os.lseek(1, 0, os.SEEK_CUR) == _MARK == os.lseek(2, 0, os.SEEK_CUR):
                return True
            return all(os.path.samestat(os.fstat(fd), self._streams) for fd in (1, 2))
        except OSError:
            return False


def stop_timers() -> None:
    """Nobody is there any more to hear them."""
    for timer in INTERVAL_TIMERS:
        if _c_signal.getitimer(timer)[0]:
            signal.setitimer(timer, 0)


def sweep_children(spared: set[int]) -> bool:
    """Kill and reap the children that the handler left. We are a subreaper: their orphans are ours, too."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True  # no children at all: the common case costs one system call
    with REAP_LOCK:
        return _sweep(spared | multiprocessing_helper_pids())


def _sweep(spared: set[int]) -> bool:
    strays = ProcessSweep()
    began = time.monotonic()
    while True:
        _, left = strays.step(spared)
        if not left:
            return True
        limit = KERNEL_HANG_SECONDS if strays.is_waiting_for_kernel else SWEEP_TIMEOUT_SECONDS
        if time.monotonic() - began > limit:
            return False
        time.sleep(SWEEP_POLL_SECONDS)


def multiprocessing_helper_pids() -> set[int]:
    """Processes that multiprocessing starts once for its whole process, not for one job."""
    found = set()
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None:
        found.add(getattr(tracker._resource_tracker, "_pid", None))
    server = sys.modules.get("multiprocessing.forkserver")
    if server is not None:
        found.add(getattr(server._forkserver, "_forkserver_pid", None))
    return {pid for pid in found if pid is not None}
