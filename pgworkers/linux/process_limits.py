"""Limits of a process: threads of numeric libraries, nice value, cores, address space, core dumps, and its OOM score."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path

#: Read once by each library when it is loaded, so they must be set before the app is imported.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "ARROW_NUM_THREADS",
    "TBB_NUM_THREADS",
    "JULIA_NUM_THREADS",
)

#: How much sooner the kernel should take a worker than anything else of the tree (0 to 1000).
WORKER_OOM_SCORE_INCREASE = 500


def set_thread_variables(count: int | None, environ: MutableMapping[str, str] | None = None) -> None:
    """One number for all thread pools; None leaves the environment alone. Variables that the user set stay."""
    if count is None:
        return
    environ = os.environ if environ is None else environ
    for variable in THREAD_VARIABLES:
        environ.setdefault(variable, str(count))


def set_nice(value: int) -> None:
    """Absolute nice value, of this process and of its session; without the right to lower it the process goes on.

    Where the kernel groups processes by session (autogroup), nice says who comes first within one session only; what
    counts against all others is the session's own.
    """
    if value:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, value)
            _set_nice_of_session(value)
        except OSError:
            pass


def _set_nice_of_session(value: int) -> None:
    """The kernel allows this once in a tenth of a second without privileges, and several queues start at once."""
    for _ in range(20):
        try:
            Path("/proc/self/autogroup").write_text(str(value))
            return
        except BlockingIOError:
            time.sleep(0.1)


def allowed_cores(cores: Sequence[int], available: set[int]) -> set[int]:
    """Those of the wanted cores that this machine has and lets us use; all available ones when none are wanted. Pure."""
    return set(cores) & available if cores else set(available)


def cores_of_worker(index: int, cores: set[int], pin: bool) -> set[int]:
    """The cores of worker number `index`: all of them, or with `pin` one in turn. Pure."""
    return {sorted(cores)[index % len(cores)]} if pin and cores else cores


def set_cores(index: int, cores: Sequence[int], pin: bool) -> None:
    """Run this process where its queue may. Without any such core it runs anywhere; the supervisor has printed that."""
    if cores or pin:
        mine = cores_of_worker(index, allowed_cores(cores, os.sched_getaffinity(0)), pin)
        if mine:
            os.sched_setaffinity(0, mine)


def set_address_space(size: int | None) -> None:
    """Set the soft limit only, so that it can be restored after a handler changed it."""
    if size is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        within = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (within, hard))


def set_core_dump_limit(size: int) -> None:
    """The largest core dump of this process and of all that it starts, for good; 0: none.

    None is written as a limit of one byte. That is too small for a file; and a program that core dumps are piped to is not
    started for it, while the kernel starts it for a limit of 0.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    wanted = size or 1
    within = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (within, within))


def raise_oom_score(pid: int, by: int = WORKER_OOM_SCORE_INCREASE) -> None:
    """Let the kernel kill a child before its parents when memory runs out. A container may forbid it."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.pwrite(fd, b"%d" % min(1000, int(os.read(fd, 16)) + by), 0)
    except OSError:
        pass
    finally:
        os.close(fd)
