"""Time, sizes and how people write them.

The database clock decides everything in SQL; the monotonic clock decides everything in a process. The wall clock
of a host decides nothing: it is only printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

monotonic = time.monotonic


def boottime() -> float:
    """Seconds since boot, suspended time included: the clock of deadlines and fences."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


#: The clock of the scoreboard. Asked several times by every job, so without a function of ours around it.
boottime_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
