"""What a queue may take from the machine: threads of numeric libraries, nice, and who dies first without memory."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

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
WORKER_OOM_SCORE = 500


def set_threads(count: int | None, environ: MutableMapping[str, str] | None = None) -> None:
    """One number for all thread pools; None leaves the environment alone. What the user set himself stays."""
    if count is None:
        return
    environ = os.environ if environ is None else environ
    for variable in THREAD_VARIABLES:
        environ.setdefault(variable, str(count))


def set_nice(value: int) -> None:
    """Absolute nice value; not being allowed to lower it is no reason not to work."""
    if value:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, value)
        except PermissionError:
            pass


def raise_oom_score(by: int = WORKER_OOM_SCORE) -> None:
    """Let the kernel take this process before its parents. Raising needs no right; a container may forbid the file."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            now = int(file.read())
            file.seek(0)
            file.write(str(min(1000, now + by)))
    except OSError:
        pass
