"""Schedules with real masters: one job per tick whichever host leads, compared with a calendar that is plain arithmetic."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.cluster import Cluster, Master, wait_for
from support.ledger import read

SECOND = timedelta(seconds=1)


def declare(cluster: Cluster, line: str) -> None:
    cluster.app.write_text(cluster.app.read_text() + f"\n\n{line}\n")


def leader(cluster: Cluster) -> Master | None:
    row = cluster.db.execute("SELECT pid FROM pgworkers.host WHERE leader").fetchone()
    return next((m for m in cluster.masters if row and m.pid == row[0]), None)


def ticks(cluster: Cluster) -> list[datetime]:
    return [row[0] for row in cluster.db.execute("SELECT at FROM pgworkers.tick ORDER BY at").fetchall()]


def one(cluster: Cluster, query: str) -> Any:
    row = cluster.db.execute(query).fetchone()
    return row[0] if row else None


def test_a_declared_schedule_fires_runs_and_shows_its_last_outcome(cluster: Cluster) -> None:
    declare(cluster, 'app.schedule("* * * * * *", name="beat", args={"value": {"rows": 3}})(work)')
    cluster.start()
    wait_for(lambda: one(cluster, "SELECT count(*) FROM pgworkers.ticks WHERE outcome = 'succeeded'") or None)
    row = cluster.db.execute(
        "SELECT rows, attempt, error_code, duration IS NOT NULL FROM pgworkers.ticks WHERE outcome = 'succeeded' LIMIT 1"
    ).fetchone()
    assert row == (3, 1, None, True)


@pytest.mark.slow
@pytest.mark.long
def test_leaders_killed_one_after_the_other_each_tick_one_job(cluster: Cluster) -> None:
    declare(cluster, 'app.schedule("* * * * * *", name="beat", missed="all")(work)')
    for _ in range(3):
        cluster.start(queues="default:1")
    killed = 0
    while killed < 2:
        first = wait_for(lambda: leader(cluster))
        before = len(ticks(cluster))
        wait_for(lambda before=before: len(ticks(cluster)) >= before + 3, what="three more ticks")
        first.signal(signal.SIGKILL)
        first.wait()
        killed += 1
        wait_for(lambda first=first: leader(cluster) not in (None, first), what="another leader")
    before = len(ticks(cluster))
    wait_for(lambda: len(ticks(cluster)) >= before + 3, what="the last one fires")
    cluster.db.execute("UPDATE pgworkers.schedule SET paused = true, revision = revision + 1")
    found = ticks(cluster)
    assert found == [found[0] + n * SECOND for n in range(len(found))], "every second of the calendar, once"
    created = one(cluster, "SELECT created_at FROM pgworkers.schedule")
    assert created < found[0] <= created + SECOND, "and from its creation on"
    cluster.until_all_ended()
    jobs = cluster.db.execute(
        "SELECT meta ->> 'tick', count(*) FROM pgworkers.jobs WHERE meta ->> 'schedule' = 'beat' GROUP BY 1"
    ).fetchall()
    assert {count for _, count in jobs} == {1}
    assert {datetime.fromisoformat(at) for at, _ in jobs} == set(found)
    assert {line.job for line in read(cluster.ledger)} == {
        row[0] for row in cluster.db.execute("SELECT job_id FROM pgworkers.tick")
    }


def test_ten_minutes_without_any_host(cluster: Cluster) -> None:
    """Every minute, last twenty seconds before the hosts come back: late, and far from the next."""
    second = int(one(cluster, "SELECT extract(second FROM now() - interval '20 s')::integer")) % 60
    for policy in ("all", "latest", "skip"):
        declare(
            cluster,
            f'app.schedule("{second} * * * * *", name="{policy}", missed="{policy}", paused=True)(work)',
        )
    first = cluster.start()
    wait_for(lambda: one(cluster, "SELECT count(*) FROM pgworkers.schedule") == 3, what="declared")
    first.terminate()
    cluster.db.execute(
        """UPDATE pgworkers.schedule SET paused = false, planned_until = now() - interval '10 min', due_at = '-infinity'"""
    )
    cluster.start()
    wait_for(lambda: one(cluster, "SELECT count(*) FROM pgworkers.schedule WHERE due_at > now()") == 3)
    made: dict[str, list[datetime]] = {}
    for name, at in cluster.db.execute("SELECT schedule, at FROM pgworkers.tick ORDER BY job_id").fetchall():
        made.setdefault(name, []).append(at)
    newest = made["latest"][-1]
    assert made == {"latest": [newest], "all": [newest - n * 60 * SECOND for n in range(9, -1, -1)]}
