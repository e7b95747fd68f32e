"""Row 49: what a pooler does to clients that enqueue through it; hosts connect directly."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.ledger import audit
from support.pooler import BOUNCER, MISSING, Pooler
from support.time_bounds import BUSY, T_DB

from pgworkers import App
from pgworkers.errors import DatabaseUnreachable

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(BOUNCER is None, reason=MISSING),
]
ROUNDS = 3


@pytest.fixture
def pooler(dsn: str, tmp_path: Path) -> Iterator[Pooler]:
    made = Pooler(dsn, tmp_path / "bouncer")
    made.start()
    yield made
    made.stop()


class Enqueuer(threading.Thread):
    """Enqueues through the pooler with a unique key each, and repeats what has no answer."""

    def __init__(self, app: App) -> None:
        super().__init__()
        self.app = app
        self.ids: dict[str, int] = {}
        self.refused = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            key = f"k{len(self.ids)}"
            try:
                self.ids[key] = self.app.tasks["gate"].using(unique=key).enqueue().id
            except DatabaseUnreachable:  # also: the outcome is unknown
                self.refused += 1
                time.sleep(0.05)


def test_row_49_a_pooler_that_pauses_restarts_and_dies_loses_and_doubles_nothing(
    pooler: Pooler, cluster: Cluster
) -> None:
    cluster.start(queues="default:2", dsn=pooler.address, PGWORKERS_DIRECT_DSN=cluster.dsn)
    app = App(dsn=pooler.address)
    app.queue("default")

    @app.task
    def gate() -> None: ...

    load = Enqueuer(app)
    load.start()
    try:
        for _ in range(ROUNDS):
            for fault in ("PAUSE", "restart", "kill"):
                _progress(load)
                if fault == "PAUSE":
                    pooler.command("PAUSE")
                    time.sleep(0.5)
                    pooler.command("RESUME")
                else:
                    pooler.stop(signal.SIGKILL if fault == "kill" else signal.SIGINT)
                    pooler.start()
        _progress(load)
    finally:
        load.over.set()
        load.join(60)
        app.close()
    cluster.open_gate()
    cluster.until_all_ended()
    assert load.refused, "the pooler was never away: nothing was tested"
    assert cluster.counts() == {"succeeded": len(load.ids)}, "one job for each key"
    assert len(set(load.ids.values())) == len(load.ids)
    assert audit(cluster.db, cluster.ledger, load.ids.values()) == []


def _progress(load: Enqueuer) -> None:
    """Some more were enqueued."""
    enough, give_up = len(load.ids) + 10, time.monotonic() + T_DB + BUSY
    while len(load.ids) < enough:
        assert load.is_alive()
        assert time.monotonic() < give_up, "enqueueing does not go on"
        time.sleep(0.01)
