"""Row 88: hosts of two versions on one database. An upgrade host by host, and the way back.

The next version is a copy of the package with one more migration: one that still serves the version before it, or one that
does not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster import Cluster, wait_for
from support.later_version import NEWEST, later_version

#: Columns in every table that hosts write, an index and a trigger: what a later version may add.
ADDITIVE = f"""\
-- serves: {NEWEST:04d}
ALTER TABLE pgworkers.job ADD COLUMN colour text NOT NULL DEFAULT 'red';
ALTER TABLE pgworkers.history ADD COLUMN colour text NOT NULL DEFAULT 'red';
ALTER TABLE pgworkers.attempt ADD COLUMN colour text NOT NULL DEFAULT 'red';
ALTER TABLE pgworkers.host ADD COLUMN colour text NOT NULL DEFAULT 'red';
ALTER TABLE pgworkers.queue ADD COLUMN colour text NOT NULL DEFAULT 'red';
ALTER TABLE pgworkers.task ADD COLUMN colour text NOT NULL DEFAULT 'red';
CREATE TABLE pgworkers.colour (name text PRIMARY KEY);
CREATE INDEX job_colour ON pgworkers.job (colour);
"""
BREAKING = f"""\
-- serves: {NEWEST + 2:04d}
ALTER TABLE pgworkers.job DROP COLUMN colour;
"""


@pytest.mark.timeout(240)
def test_row_88_two_versions_side_by_side_and_the_way_back(cluster: Cluster, tmp_path: Path) -> None:
    next_version = later_version(tmp_path / "next", additive=ADDITIVE)
    additive = f"{NEWEST + 1:04d}_additive"
    cluster.start(queues="default:1,mail:1")
    cluster.enqueue("work", 100, args={"seconds": 0.01})
    [held] = cluster.enqueue("work", queue="mail", args={"gated": True})
    cluster.until(held, "running")
    new = cluster.start(
        queues="default:1,api:1", PYTHONPATH=next_version
    )  # migrates while the old host works
    assert f"pgworkers, migrated ({additive})" in new.log()
    cluster.enqueue("work", 100)
    cluster.enqueue("work", 20, queue="mail")  # only the old host serves it
    cluster.enqueue("work", 20, queue="api")  # only the new one
    cluster.enqueue("fail", 5, args={"times": 1})
    cluster.open_gate()  # a job that began before the migration ends after it
    assert cluster.until_all_ended() == {"succeeded": 246}
    served_by = cluster.db.execute("SELECT count(DISTINCT host) FROM pgworkers.history").fetchone()
    assert served_by == (2,)

    # The way back: the host of the new version leaves under load, and one of the old version takes its place.
    cluster.enqueue("work", 100)
    cluster.enqueue("work", 20, queue="api")
    assert new.terminate() == 0, new.log()
    back = cluster.start(queues="default:1,api:1")
    assert f"schema    pgworkers, newer than this pgworkers ({additive}), which it still serves" in back.log()
    cluster.enqueue("work", 50)
    assert cluster.until_all_ended() == {"succeeded": 416}
    assert back.process.poll() is None


@pytest.mark.timeout(240)
def test_row_88_a_version_that_the_schema_no_longer_serves_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    breaking_version = later_version(tmp_path / "breaking", additive=ADDITIVE, breaking=BREAKING)
    breaking = f"{NEWEST + 2:04d}_breaking"
    old = cluster.start(queues="default:1")
    early = cluster.start(queues="default:1", wait=False, PYTHONPATH=breaking_version)
    assert early.wait() == 5
    assert f"migration {breaking} does not serve hosts that are running: " in early.log()
    cluster.enqueue("work", 20)
    assert cluster.until_all_ended() == {"succeeded": 20}, "the old host goes on"
    assert old.terminate() == 0

    cluster.enqueue("work", 20)
    cluster.start(queues="default:1", PYTHONPATH=breaking_version)
    late = cluster.start(queues="default:1", wait=False)
    assert late.wait() == 5
    assert f"is newer than this pgworkers, which does not know {breaking}" in late.log()
    assert (
        f"serves code from migration {NEWEST + 2:04d} on, and the newest one here is {NEWEST:04d}"
        in late.log()
    )
    wait_for(lambda: cluster.db.execute("SELECT count(*) FROM pgworkers.host").fetchone() == (1,))
    assert cluster.until_all_ended() == {"succeeded": 40}
