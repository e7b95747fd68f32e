"""PgBouncer in transaction mode between us and Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.command import Command
from support.pooler import BOUNCER, MISSING, pooling

from pgworkers import App

pytestmark = pytest.mark.skipif(BOUNCER is None, reason=MISSING)


@pytest.fixture
def pooled(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[str]:
    """The test's database through a pooler of its own. A parameter is one more line of its configuration."""
    with pooling(dsn, tmp_path / "bouncer", extra=[getattr(request, "param", "")]) as address:
        yield address


@pytest.mark.parametrize(
    "pooled",
    ["", "ignore_startup_parameters = options"],
    ids=["options-refused", "options-ignored"],
    indirect=True,
)
def test_a_master_behind_a_pooler_is_refused_with_advice(cluster: Cluster, pooled: str) -> None:
    master = cluster.start(wait=False, dsn=pooled)
    assert master.wait() == 2, master.log()
    assert "PGWORKERS_DIRECT_DSN" in master.log()


def test_with_a_direct_address_the_master_works_and_enqueuers_use_the_pooler(
    cluster: Cluster, pooled: str
) -> None:
    cluster.start(dsn=pooled, PGWORKERS_DIRECT_DSN=cluster.dsn)
    app = App(dsn=pooled)
    app.queue("default")

    @app.task
    def breathe(seconds: float = 0.01) -> str:
        return "not here"

    try:
        jobs = [breathe.enqueue() for _ in range(20)]
        assert {job.result(timeout=60) for job in jobs} == {"breathed"}
        assert app.enqueue_many(breathe.prepare() for _ in range(200)) == 200
        cluster.until_all_ended()
    finally:
        app.close()
    assert cluster.counts() == {"succeeded": 220}


def test_the_doctor_sees_a_pooler_and_the_way_past_it(pooled: str, dsn: str, tmp_path: Path) -> None:
    cli = Command(tmp_path, PGWORKERS_DSN=pooled)
    through = {row["check"]: row for row in cli("doctor", "-o", "json", code=None).json()}
    assert through["pooler"]["level"] == "fail"
    assert "PGWORKERS_DIRECT_DSN" in through["pooler"]["fix"][0]
    past = {row["check"]: row for row in cli("doctor", "-o", "json", PGWORKERS_DIRECT_DSN=dsn).json()}
    assert (past["pooler"]["level"], past["notify"]["level"]) == ("ok", "ok")
