"""What systemd hears of a host: READY, STATUS, WATCHDOG, RELOADING, STOPPING.

READY means that a worker waits for jobs (or that no queue wants any): from then on a start has succeeded. The watchdog is
fed by the loop itself, so a master whose loop no longer turns is killed and started again; a database that is away, or a
queue that cannot start its workers, never is a reason.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pgworkers.events import Event, HostStateChanged
from pgworkers.linux.sd_notify import ServiceNotifier
from pgworkers.master import status
from pgworkers.master.status import is_serving

if TYPE_CHECKING:
    from pgworkers.master.host import Host


class SystemdNotifier:
    def __init__(self, speaker: ServiceNotifier) -> None:
        self._socket = speaker
        self._is_ready_sent = False  # and it was heard
        self._is_stopping = False
        self._is_reloading = False
        self._status = ""

    def __call__(self, fact: Event) -> None:
        if isinstance(fact, HostStateChanged) and fact.state == "draining" and not self._is_stopping:
            self._is_stopping = True
            self._socket.notify(STOPPING=1, STATUS=f"draining: {fact.why}")

    def notify_reloading(self) -> None:
        self._is_reloading = True
        self._is_ready_sent = False
        self._socket.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000, STATUS="reloading")

    def notify_reloaded(self) -> None:
        """Also of a reload that was refused: the old code goes on, and serves."""
        self._is_reloading = False
        if not self._is_stopping:
            self._is_ready_sent = self._socket.notify(READY=1)

    @property
    def watchdog_seconds(self) -> float | None:
        """Seconds within which the manager wants to hear that the loop turns."""
        return self._socket.watchdog_seconds

    def tick(self, host: Host) -> None:
        """That the loop turns, and what changed; with every pulse."""
        if not self._socket.is_connected:
            return
        words: dict[str, str | int] = {}
        if self._socket.watchdog_seconds is not None:
            words["WATCHDOG"] = 1
        ready = self._is_ready_sent or (not self._is_stopping and not self._is_reloading and is_serving(host))
        if ready and not self._is_ready_sent:
            words["READY"] = 1
        text = "reloading" if self._is_reloading else status.title(host).removeprefix("pgworkers: master ")
        if text != self._status:
            words["STATUS"] = text
        if words and self._socket.notify(**words):
            self._is_ready_sent, self._status = ready, text  # what was not heard is said again
