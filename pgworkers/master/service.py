"""What systemd hears of a host: READY, STATUS, WATCHDOG, RELOADING, STOPPING.

READY means that a worker waits for jobs (or that no queue wants any): from then on a start has succeeded. The watchdog is
fed by the loop itself, so a master whose loop no longer turns is killed and started again; a database that is away, or a
queue that cannot start its workers, never is a reason.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pgworkers.events import Fact, HostChanged
from pgworkers.master import view
from pgworkers.process.notify import Speaker

if TYPE_CHECKING:
    from pgworkers.master.host import Host


class Service:
    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._ready = False  # and it was heard
        self._stopping = False
        self._reloading = False
        self._status = ""

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, HostChanged) and fact.state == "draining" and not self._stopping:
            self._stopping = True
            self._speaker.tell(STOPPING=1, STATUS=f"draining: {fact.why}")

    def reloading(self) -> None:
        self._reloading = True
        self._ready = False
        self._speaker.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000, STATUS="reloading")

    def reloaded(self) -> None:
        """Also of a reload that was refused: the old code goes on, and serves."""
        self._reloading = False
        if not self._stopping:
            self._ready = self._speaker.tell(READY=1)

    @property
    def watchdog(self) -> float | None:
        """Seconds within which the manager wants to hear that the loop turns."""
        return self._speaker.watchdog

    def tick(self, host: Host) -> None:
        """That the loop turns, and what changed; with every pulse."""
        if not self._speaker.heard:
            return
        words: dict[str, str | int] = {}
        if self._speaker.watchdog is not None:
            words["WATCHDOG"] = 1
        ready = self._ready or (not self._stopping and not self._reloading and serves(host))
        if ready and not self._ready:
            words["READY"] = 1
        status = "reloading" if self._reloading else view.title(host).removeprefix("pgworkers: master ")
        if status != self._status:
            words["STATUS"] = status
        if words and self._speaker.tell(**words):
            self._ready, self._status = ready, status  # what was not heard is said again


def serves(host: Host) -> bool:
    """Does a worker wait for jobs, or does nobody want one?"""
    wanted = any(host.supervisors.target(queue) for queue in host.dispatch.desks)
    return host.state == "running" and (
        not wanted
        or any(worker.state in ("idle", "busy", "suspended") for worker in host.dispatch.all_workers())
    )
