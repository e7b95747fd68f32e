"""When a process was last seen alive: the end of an execution that could not write one into the ledger."""

from __future__ import annotations

import threading
import time

import psutil

POLL_SECONDS = 0.002
PATIENCE = 10.0


class ProcessWatch(threading.Thread):
    """Looks at one process until it is gone. `last` is never later than its death, CLOCK_BOOTTIME."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self.last = 0
        self.start()

    def was_alive_after(self, at: int) -> bool:
        """True if it was seen alive after that moment. Waits until that is known."""
        give_up = time.monotonic() + PATIENCE
        while self.is_alive() and self.last <= at and time.monotonic() < give_up:
            time.sleep(POLL_SECONDS)
        return self.last > at

    def run(self) -> None:
        try:
            while True:
                now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                if self._process.status() == psutil.STATUS_ZOMBIE or not self._process.is_running():
                    return
                self.last = now
                time.sleep(POLL_SECONDS)
        except psutil.Error:
            return
