"""`job.watch()` of jobs that a real host runs: a killed worker, a database that restarts, a cancel."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.server import OwnServer

from pgworkers import App, WatchEvent


class Watcher:
    """A watch in a thread."""

    def __init__(self, app: App, job_id: int) -> None:
        self.events: list[WatchEvent] = []
        self._thread = threading.Thread(target=self._watch, args=(app, job_id))
        self._thread.start()

    def _watch(self, app: App, job_id: int) -> None:
        for event in app.job(job_id).watch():
            self.events.append(event)

    def join(self) -> WatchEvent:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.events[-1]


@pytest.fixture
def app(cluster: Cluster) -> Iterator[App]:
    made = App(dsn=cluster.dsn, poll_interval="0.1s")
    yield made
    made.close()


def test_the_progress_of_a_handler(cluster: Cluster, app: App) -> None:
    cluster.start(queues="default:1")
    (job,) = cluster.enqueue("progress", args={"steps": 60, "pause": 0.05})
    end = Watcher(app, job)
    assert (end.join().kind, end.events[-1].state) == ("end", "succeeded")
    assert any(event.state == "running" and 0 < (event.fraction or 0) < 1 for event in end.events)


def test_a_worker_that_is_killed_shows_as_another_attempt(cluster: Cluster, app: App) -> None:
    master = cluster.start(queues="default:1")
    (job,) = cluster.enqueue("gate", args={"value": 5})
    watcher = Watcher(app, job)
    wait_for(lambda: watcher.events and watcher.events[-1].state == "running")
    (worker,) = (pid for pid, _ in master.titles(f"#{job}"))
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: any(event.error and "SIGKILL" in event.error for event in watcher.events))
    wait_for(lambda: watcher.events[-1].attempt == 2 and watcher.events[-1].state == "running")
    cluster.open_gate()
    assert watcher.join().state == "succeeded"
    assert watcher.events[-1].attempt == 2


def test_a_cancelled_job_ends_as_cancelled(cluster: Cluster, app: App) -> None:
    cluster.start(queues="default:1")
    (job,) = cluster.enqueue("hang")
    watcher = Watcher(app, job)
    wait_for(lambda: watcher.events and watcher.events[-1].state == "running")
    app.job(job).cancel()
    end = watcher.join()
    assert (end.kind, end.state, end.verdict) == ("end", "cancelled", "cancelled")


def test_a_watch_continues_after_a_restart_of_the_database(
    own_cluster: Cluster, own_server: OwnServer
) -> None:
    cluster = own_cluster
    app = App(dsn=cluster.dsn, poll_interval="0.1s")
    cluster.start(queues="default:1", **UNHURRIED)
    (job,) = cluster.enqueue("gate")
    watcher = Watcher(app, job)
    wait_for(lambda: watcher.events and watcher.events[-1].state == "running")
    own_server.crash()
    cluster.open_gate()
    own_server.start()
    cluster.reconnect()
    assert watcher.join().state == "succeeded"
    app.close()
