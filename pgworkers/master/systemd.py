"""Notifications to systemd: READY, STATUS, WATCHDOG, RELOADING, STOPPING.

READY is sent once a worker is idle, busy or suspended, or no queue wants workers: then the start has succeeded. The event
loop itself feeds the watchdog, so a master whose loop hangs is killed and restarted. A database that is away, or a queue
that cannot start its workers, does not cause a restart.
"""

from __future__ import annotations

import time

from pgworkers.events import Event, HostStateChanged
from pgworkers.linux.sd_notify import ServiceNotifier
from pgworkers.master.status import HostStatus
from pgworkers.states import HostState


class SystemdNotifier:
    def __init__(self, systemd_socket: ServiceNotifier, status: HostStatus) -> None:
        self._socket = systemd_socket
        self._status = status
        self._is_ready_sent = False  # and received
        self._is_stopping = False
        self._is_reloading = False
        self._last_text = ""

    def __call__(self, event: Event) -> None:
        if (
            isinstance(event, HostStateChanged)
            and event.state == HostState.DRAINING
            and not self._is_stopping
        ):
            self._is_stopping = True
            self._socket.notify(STOPPING=1, STATUS=f"draining: {event.why}")

    def notify_reloading(self) -> None:
        self._is_reloading = True
        self._is_ready_sent = False
        self._socket.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000, STATUS="reloading")

    def notify_reloaded(self) -> None:
        """Called after a refused reload, too: the old code continues and serves."""
        self._is_reloading = False
        if not self._is_stopping:
            self._is_ready_sent = self._socket.notify(READY=1)

    @property
    def watchdog_seconds(self) -> float | None:
        """The watchdog timeout that the service manager has set; None: it has set none."""
        return self._socket.watchdog_seconds

    def tick(self) -> None:
        """Feed the watchdog, and send what has changed."""
        if not self._socket.is_connected:
            return
        words: dict[str, str | int] = {}
        if self._socket.watchdog_seconds is not None:
            words["WATCHDOG"] = 1
        can_be_ready = not self._is_stopping and not self._is_reloading
        is_ready = self._is_ready_sent or (can_be_ready and self._status.is_serving())
        if is_ready and not self._is_ready_sent:
            words["READY"] = 1
        title = self._status.title()
        text = "reloading" if self._is_reloading else title.removeprefix("pgworkers: master ")
        if text != self._last_text:
            words["STATUS"] = text
        if words and self._socket.notify(**words):
            self._is_ready_sent, self._last_text = is_ready, text  # what was not received is sent again
