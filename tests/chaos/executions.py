"""When each execution was last seen alive. A handler that was killed writes no end into the ledger; this is its end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from support.ledger import Entry

LOOK = 0.02  # seconds between two looks

Run = tuple[int, int]  # job and lease


class Lives(threading.Thread):
    """Follows the ledger and looks at every process that has begun a job and not ended it."""

    def __init__(self, ledger: Path) -> None:
        super().__init__(name="lives", daemon=True)
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
        """When each execution ended: what it wrote, else when it was last seen, which is not later than its death."""
        wrote = {(one.job, one.lease): one.at for one in entries if one.kind != "START"}
        return self._last | wrote

    def run(self) -> None:
        while not self._end.wait(LOOK):
            for entry in self._news():
                self._hear(entry)
            for pid, (run, born) in list(self._runs.items()):
                now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                if birth(pid) == born:
                    self._last[run] = now
                else:
                    del self._runs[pid]

    def _hear(self, entry: Entry) -> None:
        old = self._runs.pop(entry.pid, None)
        if entry.kind != "START":
            return
        if old is not None:  # its process lives, so no death ended it: the time of its end is unknown
            self._last.pop(old[0], None)
        born = birth(entry.pid)
        if born is not None:
            self._runs[entry.pid] = ((entry.job, entry.lease), born)

    def _news(self) -> list[Entry]:
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


def birth(pid: int) -> str | None:
    """When this process began, which tells it from another of the same number. None: it is dead."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]
