"""Row 72: the clock of the database jumps while jobs run, wait for their time or their retry, and a schedule ticks.

The server is the test's own; its clock is really moved, for every session at once. The hosts have the true time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.clock_checks import BEAT, SHOWN, more_ticks, refuse_negatives, ticks, verdicts
from support.cluster import Cluster, wait_for
from support.cluster_fixtures import audited_cluster
from support.ledger import LATE, audit, most_at_once
from support.server import OwnServer, migrated
from support.shifted_clock import ShiftedClock
from support.time_bounds import BUSY, T_HOST, T_LEAD

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # on a busy machine

JUMP = 600.0
SWEPT = T_HOST + T_LEAD  # seconds in which the sweep looks at every host several times


@pytest.fixture
def jumping(
    request: pytest.FixtureRequest, wall: ShiftedClock, tmp_path: Path, bindir: Path | None, schema: str
) -> Iterator[Cluster]:
    """Masters on a server that has the clock `wall`; they themselves have the true one."""
    server = OwnServer(tmp_path / "own", wall.programs(tmp_path / "clock", bindir))
    try:
        migrated(server.dsn, schema)
        with audited_cluster(request, server.dsn, tmp_path) as cluster:
            yield cluster
    finally:
        server.close()


def away(conn: psycopg.Connection[Any]) -> float:
    """How far the clock of the database is from ours."""
    row = conn.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return float(row[0]) - time.time()


def prove(cluster: Cluster, shift: float) -> None:
    """In a session that was there before and in a new one."""
    with psycopg.connect(cluster.dsn, autocommit=True) as new:
        assert abs(away(cluster.db) - shift) < 60
        assert abs(away(new) - shift) < 60


@pytest.mark.excused(
    "I6", "by the rows a lease overlaps the next by the jump; the test audits with that allowance"
)
def test_row_72_the_clock_of_the_database_jumps_back(jumping: Cluster, wall: ShiftedClock) -> None:
    jumping.declare(BEAT.format("all"))
    leader = jumping.start(queues="default:2,a:1", **SHOWN)
    wait_for(lambda: jumping.leader() is leader)
    other, gone = (
        jumping.start(queues="default:2,b:1", **SHOWN),
        jumping.start("-Q", "c", queues="default:1,c:1", wait=False),
    )
    held = [*jumping.enqueue("gate", queue="a"), *jumping.enqueue("gate", queue="b", max_attempts=1)]
    [kept] = jumping.enqueue("gate", queue="c", max_attempts=1)
    wait_for(lambda: {jumping.state(job) for job in (*held, kept)} == {"running"})
    more_ticks(jumping, 2)
    [later] = jumping.enqueue("work", delay="20 seconds")
    [again] = jumping.enqueue("steer", args={"how": "retry", "after": 20.0})
    wait_for(lambda: jumping.state(again) == "scheduled" and verdicts(jumping, "error") == [again])
    gone.signal(signal.SIGKILL)
    gone.wait()
    prove(jumping, 0.0)

    wall.move(-JUMP)
    prove(jumping, -JUMP)
    beats = len(ticks(jumping))
    jobs = jumping.enqueue("work", 20, args={"seconds": 0.05})
    [long] = jumping.enqueue("work", args={"seconds": SWEPT}, timeout="60 seconds")
    [soon] = jumping.enqueue("work", delay="2 seconds")
    for job in (*jobs, long, soon):
        jumping.until(job, "succeeded")
    assert verdicts(jumping, "host_lost") == [], "nothing is rescued: a lease only lasts longer"
    assert {jumping.state(job) for job in (*held, kept)} == {"running"}
    assert {jumping.state(job) for job in (later, again)} == {"scheduled"}, "by the database's time"
    assert len(ticks(jumping)) <= beats + 1, "ticks that had their turn are not repeated"
    assert jumping.leader() is leader
    other.signal(signal.SIGKILL)  # it has renewed since: its lease has its full length
    assert jumping.until(held[1], "dead", timeout=T_HOST + BUSY)["verdict"] == "host_lost"
    refuse_negatives(jumping, leader, show=held[1])  # that job was claimed ten minutes after it was rescued

    wall.move(0.0)
    prove(jumping, 0.0)
    for job in (later, again):
        jumping.until(job, "succeeded")
    jumping.until(kept, "dead", timeout=2 * T_HOST + BUSY)  # its lease lasted longer by the jump
    assert set(verdicts(jumping, "host_lost")) == {held[1], kept}
    more_ticks(jumping, 3)
    assert jumping.leader() is leader
    assert jumping.row(held[0])["lease"] == 1
    jumping.open_gate()
    jumping.until(held[0], "succeeded")
    refuse_negatives(jumping, leader)
    assert leader.terminate() == 0
    beat_jobs = [row[1] for row in ticks(jumping)]
    ids = [*held, kept, later, again, *jobs, long, soon, *beat_jobs]
    assert audit(jumping.db, jumping.ledger, ids, late=JUMP + LATE) == []


#: Renewals so rare that every sweep and every candidate looks in between.
RARE = {
    "PGWORKERS_RENEW_INTERVAL": "2s",
    "PGWORKERS_LEASE_DURATION": "12s",
    "PGWORKERS_RESCUE_INTERVAL": "0.1s",
}


def renewals(cluster: Cluster) -> set[object]:
    return {row[0] for row in cluster.db.execute("SELECT (id, renewed_at)::text FROM pgworkers.host")}


def test_row_72_the_clock_of_the_database_jumps_forward(jumping: Cluster, wall: ShiftedClock) -> None:
    jumping.declare(BEAT.format("latest"))
    shown = RARE | SHOWN
    leader = jumping.start(queues="default:2,a:1,shared:c4", wait=False, **shown)
    wait_for(lambda: jumping.leader() is leader)
    other = jumping.start(queues="default:2,b:1,shared:c4", wait=False, **shown)
    held = [*jumping.enqueue("gate", queue="a"), *jumping.enqueue("gate", queue="b", max_attempts=1)]
    wait_for(
        lambda: (
            len(jumping.db.execute("SELECT FROM pgworkers.cluster_slots WHERE acknowledged = 2").fetchall())
            == 2
        )
    )
    many = jumping.enqueue("gate", 8, queue="shared", max_attempts=2)
    [later] = jumping.enqueue("work", delay="5 minutes")
    [again] = jumping.enqueue("steer", args={"how": "retry", "after": 300.0})
    wait_for(lambda: {jumping.state(job) for job in held} == {"running"})
    wait_for(lambda: [jumping.state(job) for job in many].count("running") == 4)
    wait_for(lambda: jumping.state(again) == "scheduled" and verdicts(jumping, "error") == [again])
    time.sleep(14)  # a lease and a gap: it may call others lost from now on, if they are
    before = renewals(jumping)
    wait_for(lambda: not renewals(jumping) & before)  # no host is about to renew
    prove(jumping, 0.0)

    wall.move(JUMP)
    prove(jumping, JUMP)
    for _ in range(3):
        before = renewals(jumping)
        wait_for(lambda before=before: not renewals(jumping) & before, what="all have renewed")
        assert verdicts(jumping, "host_lost") == [], "somebody was rescued because of the database's clock"
        assert jumping.leader() is leader, "somebody was deposed because of the database's clock"
    for job in (later, again):
        jumping.until(job, "succeeded")
    more_ticks(jumping, 3)
    assert [jumping.row(job)["lease"] for job in held] == [1, 1]
    assert most_at_once(jumping.ledger, {}, many) == 4, "more workers than the cluster may have"
    assert "no longer leads" not in leader.log()
    refuse_negatives(jumping, leader, other, show=again)

    other.signal(signal.SIGKILL)  # and a lost host stays lost
    assert jumping.until(held[1], "dead", timeout=60 + BUSY)["verdict"] == "host_lost"
    jumping.open_gate()
    for job in (held[0], *many):
        jumping.until(job, "succeeded")
    refuse_negatives(jumping, leader)
    assert leader.terminate() == 0
