"""Undo what a handler changed in its process, so that the next job does not see it.

A snapshot of the process is taken once, after the start hooks. A check compares the process with the snapshot and puts
the differences back.

A complete check takes longer than a very short job. So tasks earn trust: after TRUSTED_AFTER_JOBS checks in a row
that found no change, jobs of a task that succeed are checked less often. The next check comes after the first job that ends
CLEANUP_CHECK_INTERVAL_NS or more after the last check, and always before the worker waits for another job. Jobs that start
before that check can see what a trusted task changed. A change takes the trust from every task that ran since the last
check.

Streams and the recursion limit are checked after every job, and child processes after every job that took long enough to
start one.
"""

from __future__ import annotations

import locale
import os
import resource
import signal
import sys
import time

from pgworkers.linux import proc
from pgworkers.linux.descriptors import OwnedDescriptor
from pgworkers.linux.sweep import KERNEL_HANG_SECONDS, REAP_LOCK, SWEEP_TIMEOUT_SECONDS, ProcessSweep
from pgworkers.worker.meter import MIN_FORK_NS
from pgworkers.worker.startup import enable_stack_dumps, redirect_streams, restore_dump_signal

_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - set(range(32, 65)))
_RLIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
INTERVAL_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: Number of successive checks that must find no change before a task is trusted.
TRUSTED_AFTER_JOBS = 100
#: Time between two complete checks while only trusted tasks run.
CLEANUP_CHECK_INTERVAL_NS = 10_000_000
SWEEP_POLL_SECONDS = 0.001


class ProcessCleanup:
    """The snapshot of a worker process, and the checks that restore it."""

    def __init__(self, output: OwnedDescriptor, dump: OwnedDescriptor, spared_children: set[int]) -> None:
        self._output = output
        self._dump = dump
        self._output_stat = os.fstat(output.fd)
        self._cwd = os.getcwd()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._environ = dict(os.environb)
        self._handlers = [signal.getsignal(signum) for signum in _SIGNALS]
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._limits = [resource.getrlimit(kind) for kind in _RLIMITS]
        self._cores = os.sched_getaffinity(0)
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._users = os.getresuid(), os.getresgid()
        self._locale = locale.setlocale(locale.LC_ALL)
        self._recursion_limit = sys.getrecursionlimit()
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._spared_children = spared_children  # those that start hooks made
        #: Size of the capture file after the last job.
        self.output_end = 0
        self._next_check_at = 0
        self._clean_jobs: dict[str, int] = {}  # by task: successive checks that found no change
        self._unchecked_tasks: set[str] = set()  # tasks that ran since the last complete check

    def after_job(self, task: str, *, started_at: int, ended_at: int, has_succeeded: bool) -> bool:
        """Undo what a job of `task` changed. False: this process is not fit for another job."""
        self._unchecked_tasks.add(task)
        if (
            has_succeeded
            and ended_at < self._next_check_at
            and self._clean_jobs.get(task, 0) >= TRUSTED_AFTER_JOBS
            and self._looks_unchanged(may_have_children=ended_at - started_at >= MIN_FORK_NS)
        ):
            return True
        return self._check_everything(ended_at)

    def before_wait(self) -> bool:
        """Check what was not checked after the last jobs.

        False: this process is not fit for another job.
        """
        return not self._unchecked_tasks or self._check_everything(0)

    def _looks_unchanged(self, *, may_have_children: bool) -> bool:
        """Check what is cheap to read. False: something differs, so everything has to be checked."""
        stdin, stdout, stderr = self._streams
        if (
            sys.stdin is not stdin
            or sys.stdout is not stdout
            or sys.stderr is not stderr
            or getattr(stdout, "closed", False)
            or getattr(stderr, "closed", False)
            or sys.getrecursionlimit() != self._recursion_limit
        ):
            return False
        output_end = self._output.size()
        if output_end is None:
            return False
        self.output_end = output_end
        if not may_have_children or not _has_children():
            return True
        return not _children_besides(self._spared_children)

    def _check_everything(self, now: int) -> bool:
        """Put every difference back. False: that was not possible."""
        self._next_check_at = now + CLEANUP_CHECK_INTERVAL_NS
        try:
            has_changed = self._restore()
            is_fit = (
                sweep_children(self._spared_children)
                and (os.getresuid(), os.getresgid()) == self._users
                and self._dump.is_still_ours()
            )
        except (OSError, ValueError):
            return False  # the job keeps its result
        for task in self._unchecked_tasks:
            self._clean_jobs[task] = 0 if has_changed else self._clean_jobs.get(task, 0) + 1
        self._unchecked_tasks.clear()
        return is_fit

    def _restore(self) -> bool:
        """True: there was something to put back."""
        changes = [
            self._restore_environment(),
            self._restore_recursion_limit(),
            self._restore_locale(),
            self._restore_signals(),
            self._restore_streams(),
            os.umask(self._umask) != self._umask,
            self._restore_cores(),
            self._restore_directory(),
            self._restore_priority(),
            self._restore_limits(),
        ]
        return any(changes)

    def _restore_environment(self) -> bool:
        if dict(os.environb) == self._environ:
            return False
        for name in set(os.environb) - set(self._environ):
            del os.environb[name]
        for name, value in self._environ.items():
            if os.environb.get(name) != value:
                os.environb[name] = value
        return True

    def _restore_recursion_limit(self) -> bool:
        if sys.getrecursionlimit() == self._recursion_limit:
            return False
        sys.setrecursionlimit(self._recursion_limit)
        return True

    def _restore_locale(self) -> bool:
        if locale.setlocale(locale.LC_ALL) == self._locale:
            return False
        locale.setlocale(locale.LC_ALL, self._locale)
        return True

    def _restore_signals(self) -> bool:
        """Timers, handlers, mask, and the stack dumps, which use SIGUSR2."""
        has_changed = stop_timers()
        restore_dumps = enable_stack_dumps
        for signum, handler in zip(_SIGNALS, self._handlers, strict=True):
            if signal.getsignal(signum) != handler:
                has_changed = True
                if handler is not None:
                    signal.signal(signum, handler)
                    restore_dumps = restore_dump_signal if signum == signal.SIGUSR2 else restore_dumps
        if signal.pthread_sigmask(signal.SIG_SETMASK, self._mask) != self._mask:
            has_changed = True
        restore_dumps(self._dump)
        return has_changed

    def _restore_streams(self) -> bool:
        """The capture file may be missing or replaced (OSError); stdin, stdout and stderr may be anything."""
        has_changed = (sys.stdin, sys.stdout, sys.stderr) != self._streams
        sys.stdin, sys.stdout, sys.stderr = self._streams
        self._output.check()
        if not self._is_captured():
            has_changed = True
            redirect_streams(self._output.fd)
        self.output_end = self._output.size() or 0
        return has_changed

    def _is_captured(self) -> bool:
        """True if the descriptors of stdout and stderr are still the capture file."""
        try:
            return all(os.path.samestat(os.fstat(fd), self._output_stat) for fd in (1, 2))
        except OSError:
            return False

    def _restore_cores(self) -> bool:
        if os.sched_getaffinity(0) == self._cores:
            return False
        os.sched_setaffinity(0, self._cores)
        return True

    def _restore_directory(self) -> bool:
        try:
            if os.getcwd() == self._cwd:
                return False
        except FileNotFoundError:
            pass  # the handler went into a directory and removed it
        os.chdir(self._cwd)
        return True

    def _restore_priority(self) -> bool:
        if os.getpriority(os.PRIO_PROCESS, 0) == self._nice:
            return False
        os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        return True

    def _restore_limits(self) -> bool:
        if [resource.getrlimit(kind) for kind in _RLIMITS] == self._limits:
            return False
        for kind, limit in zip(_RLIMITS, self._limits, strict=True):
            resource.setrlimit(kind, limit)
        return True


def stop_timers() -> bool:
    """Stop the interval timers that a handler started. True: there was one."""
    running = [timer for timer in INTERVAL_TIMERS if signal.getitimer(timer)[0]]
    for timer in running:
        signal.setitimer(timer, 0)
    return bool(running)


def sweep_children(spared: set[int]) -> bool:
    """Kill and reap the children that the handler left. False: some could not be killed.

    A worker is a subreaper, so orphans of its children are its own children.
    """
    if not _has_children():
        return True
    with REAP_LOCK:
        return _sweep(spared | multiprocessing_helper_pids())


def _has_children() -> bool:
    """One system call. Most jobs leave no child."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children_besides(spared: set[int]) -> set[int]:
    return set(proc.children(os.getpid())) - spared - multiprocessing_helper_pids()


def _sweep(spared: set[int]) -> bool:
    sweep = ProcessSweep()
    started_at = time.monotonic()
    while True:
        _, left = sweep.step(spared)
        if not left:
            return True
        limit = KERNEL_HANG_SECONDS if sweep.is_waiting_for_kernel else SWEEP_TIMEOUT_SECONDS
        if time.monotonic() - started_at > limit:
            return False
        time.sleep(SWEEP_POLL_SECONDS)


def multiprocessing_helper_pids() -> set[int]:
    """Processes that multiprocessing starts once per process and not for one job.

    Both attributes are private. multiprocessing has no public function for them.
    """
    found = set()
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None:
        found.add(getattr(tracker._resource_tracker, "_pid", None))
    server = sys.modules.get("multiprocessing.forkserver")
    if server is not None:
        found.add(getattr(server._forkserver, "_forkserver_pid", None))
    return {pid for pid in found if pid is not None}
