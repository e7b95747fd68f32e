"""When each execution was last seen alive: the end of a killed handler, which writes none into the ledger."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from support.ledger import Entry

POLL_SECONDS = 0.02

Run = tuple[int, int]  # job and lease


class ExecutionTracker(threading.Thread):
    """Follow the ledger, and poll every process that has begun a job and not ended it."""

    def __init__(self, ledger: Path) -> None:
        super().__init__(name="executions", daemon=True)
        self._ledger = ledger
        self._read = 0  # bytes
        self._last: dict[Run, int] = {}
        self._runs: dict[int, tuple[Run, str]] = {}  # by pid; and when that process began
        self._end = threading.Event()
        self.start()

    def close(self) -> None:
        self._end.set()
        self.join(10)

    def ends(self, entries: list[Entry]) -> dict[Run, int]:
        """When each execution ended: the time in the ledger, else when its process was last seen alive."""
        wrote = {(one.job, one.lease): one.at for one in entries if one.kind != "START"}
        return self._last | wrote

    def run(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            for entry in self._new_entries():
                self._record(entry)
            for pid, (run, started) in list(self._runs.items()):
                now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                if process_start_time(pid) == started:
                    self._last[run] = now
                else:
                    del self._runs[pid]

    def _record(self, entry: Entry) -> None:
        old = self._runs.pop(entry.pid, None)
        if entry.kind != "START":
            return
        if old is not None:  # its process is alive, so no death ended it: the time of its end is unknown
            self._last.pop(old[0], None)
        started = process_start_time(entry.pid)
        if started is not None:
            self._runs[entry.pid] = ((entry.job, entry.lease), started)

    def _new_entries(self) -> list[Entry]:
        try:
            with self._ledger.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        found = []
        for line in whole.decode().splitlines():
            kind, *numbers = line.split()
            found.append(Entry(kind, *map(int, numbers)))
        return found


def process_start_time(pid: int) -> str | None:
    """The start time of a process, which identifies it if its pid is reused. None if it is dead."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]
