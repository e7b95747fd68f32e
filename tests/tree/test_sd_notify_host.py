"""A master under a service manager: what it notifies, when, and that no other process notifies for it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.cluster import Cluster, Master, wait_for
from support.ledger import read


class ServiceManager:
    """The receiving half of sd_notify."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.address = str(path)
        self.notifications: list[dict[str, str]] = []

    def listen(self, timeout: float = 0.01) -> list[dict[str, str]]:
        self.socket.settimeout(timeout)
        while True:
            try:
                lines = self.socket.recv(4096).decode().splitlines()
            except TimeoutError:
                return self.notifications
            self.notifications.append(dict(line.split("=", 1) for line in lines))
            self.socket.settimeout(0.01)

    def until(self, word: str, after: int = 0) -> int:
        """Wait for a variable. Returns its position among all notifications."""

        def place() -> int:
            said = (at for at, words in enumerate(self.listen()) if at >= after and word in words)
            return next(said, -1) + 1

        return (
            wait_for(place, timeout=90, what=word) - 1
        )  # a reload boots a supervisor: slow on a busy machine


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    made = ServiceManager(tmp_path / "notify")
    yield made
    made.socket.close()


def environs(master: Master) -> dict[int, bytes]:
    return {
        pid: Path(f"/proc/{pid}/environ").read_bytes()
        for pid in (*master.supervisor_pids(), *master.worker_pids())
    }


def test_start_reload_and_stop_are_notified(cluster: Cluster, manager: ServiceManager) -> None:
    master = cluster.start(
        NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="1500000", PGWORKERS_DRAIN_TIMEOUT="60s"
    )
    ready = manager.until("READY")
    manager.until("WATCHDOG", after=ready + 1)
    assert any("misbehaving [" in words.get("STATUS", "") for words in manager.notifications)
    children = environs(master)
    assert len(children) == 3
    assert not [
        pid for pid, environ in children.items() if b"NOTIFY_SOCKET" in environ or b"WATCHDOG" in environ
    ]

    master.signal(signal.SIGHUP)
    reloading = manager.until("RELOADING")
    assert int(manager.notifications[reloading]["MONOTONIC_USEC"]) > 0
    again = manager.until("READY", after=reloading)

    job = cluster.enqueue("gate", args={"value": "slow"})[0]
    wait_for(lambda: read(cluster.ledger))  # it has begun: what was only claimed is given back
    master.signal(signal.SIGTERM)
    stopping = manager.until("STOPPING", after=again)
    manager.until("WATCHDOG", after=stopping)  # a drain is no reason to be killed by the watchdog
    cluster.open_gate()
    assert master.wait() == 0
    assert [at for at, words in enumerate(manager.listen()) if "STOPPING" in words] == [stopping]
    assert cluster.state(job) == "succeeded"


def test_a_loop_that_does_not_turn_feeds_no_watchdog(cluster: Cluster, manager: ServiceManager) -> None:
    """The broken twin of a fed watchdog: silence is what makes systemd act."""
    master = cluster.start(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="300000")
    manager.until("READY")
    master.signal(signal.SIGSTOP)
    wait_for(lambda: psutil.Process(master.pid).status() == psutil.STATUS_STOPPED)
    before = len(manager.listen())
    assert len(manager.listen(timeout=1.0)) == before
    master.signal(signal.SIGCONT)
    manager.until("WATCHDOG", after=before)


def test_no_manager_no_words(cluster: Cluster) -> None:
    master = cluster.start(NOTIFY_SOCKET="/nowhere/at/all", WATCHDOG_USEC="1000000")
    job = cluster.enqueue("work")[0]
    cluster.until(job, "succeeded")
    assert master.terminate() == 0
