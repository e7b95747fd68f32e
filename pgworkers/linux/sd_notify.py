"""The service manager's socket: systemd's `sd_notify` protocol in a few lines.

A datagram of `NAME=value` lines goes to the unix socket that NOTIFY_SOCKET names (`@` stands for the NUL byte of an
abstract one). Saying it never waits and never fails: a manager that does not listen is its own affair.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

SERVICE_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceNotifier:
    """Notifies the service manager, if there is one, which may expect a notification every `watchdog_seconds`."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self.watchdog_seconds = watchdog if address else None
        self._address = "\0" + address[1:] if address and address[0] == "@" else address
        self._socket = (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            if address
            else None
        )

    @property
    def is_connected(self) -> bool:
        """True if there is a service manager."""
        return self._socket is not None

    def notify(self, **words: str | int) -> bool:
        """`notify(READY=1, STATUS="3/6 busy")`: one datagram. False: it could not be sent now."""
        if self._socket is None or self._address is None:
            return False
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in words.items())
        try:
            self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:
            return False  # the service manager is gone, or has not read the last messages
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def from_environment(environ: MutableMapping[str, str] | None = None) -> ServiceNotifier:
    """The notifier of this service. Its variables are removed from the environment, so that no child uses them."""
    environ = os.environ if environ is None else environ
    variables = {name: environ.pop(name, "") for name in SERVICE_VARIABLES}
    address = variables["NOTIFY_SOCKET"]
    if len(address) < 2 or address[0] not in "/@":
        return ServiceNotifier()
    ours = variables["WATCHDOG_PID"] in ("", str(os.getpid()))
    period = variables["WATCHDOG_USEC"]
    return ServiceNotifier(
        address, int(period) / 1e6 if ours and period.isdecimal() and int(period) else None
    )
