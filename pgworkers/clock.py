"""The clocks of a process.

In SQL the clock of the database decides. In a process the monotonic clock measures waits, and CLOCK_BOOTTIME, which also
counts suspended time, decides leases and deadlines. The wall clock of a host is only printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

monotonic = time.monotonic


def boottime() -> float:
    """Seconds since boot, suspended time included: the clock of deadlines and fences."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


#: The clock of the scoreboard. Every job reads it several times, so it is not wrapped in a Python function.
boottime_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
