"""Many masters, one leader: killed, frozen, terminated, and never two that act."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.cluster import Cluster, Master, wait_for
from support.connect_only_login import stranger_session
from support.ledger import audit, read
from support.time_bounds import BUSY, PROMOTE, E, P, R, S


def leaders(cluster: Cluster) -> list[int]:
    """Pids of the sessions that hold a leader's lock in this database."""
    rows = cluster.db.execute(
        "SELECT l.pid FROM pg_locks l WHERE locktype = 'advisory' AND granted AND classid = 1885828967"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchall()
    return [row[0] for row in rows]


def readyz(master: Master) -> str:
    [line] = [line for line in master.log().splitlines() if line.startswith("metrics ")]
    address = line.split()[1].removesuffix("/metrics")
    with urllib.request.urlopen(f"{address}/readyz?verbose", timeout=10) as answer:
        return str(answer.read().decode())


def leader(cluster: Cluster) -> Master | None:
    row = cluster.db.execute("SELECT pid FROM pgworkers.host WHERE leader").fetchone()
    return next((m for m in cluster.masters if row and m.pid == row[0]), None)


LOCK = "SELECT pg_advisory_lock((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint)"


@pytest.fixture
def stranger(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    """A session of a login that has only CONNECT, and that holds the leader's lock."""
    with stranger_session(cluster.dsn) as conn:
        conn.execute(
            "SELECT pg_advisory_lock((1885828967::bigint << 32) | oid::bigint)"
            " FROM pg_namespace WHERE nspname = 'pgworkers'"
        )
        yield conn


def promotes(cluster: Cluster) -> None:
    """A duty is performed: what is scheduled runs."""
    [job] = cluster.enqueue("work", delay="0.2 seconds")
    cluster.until(job, "succeeded")


def test_a_stranger_that_holds_the_lock_stops_no_duty_and_is_reported(
    cluster: Cluster, stranger: psycopg.Connection[Any]
) -> None:
    first = cluster.start("--metrics", "127.0.0.1:0", queues="default:1")
    wait_for(lambda: leader(cluster) is first)
    promotes(cluster)
    holder = f"pid {stranger.info.backend_pid}, role stranger_"
    wait_for(lambda: holder in first.log() and "psql of a stranger" in first.log())
    assert holder in readyz(first)
    second = cluster.start(queues="default:1")
    first.signal(signal.SIGKILL)
    first.wait()
    wait_for(lambda: leader(cluster) is second)
    promotes(cluster)
    assert "was deposed" not in second.log()
    assert stranger.execute("SELECT 1").fetchone() == (1,), "its session was left alone"
    stranger.execute("SELECT pg_advisory_unlock_all()")
    wait_for(lambda: "has let it go" in second.log())
    wait_for(lambda: leaders(cluster) and stranger.info.backend_pid not in leaders(cluster))
    assert leader(cluster) is second


def test_a_frozen_leader_is_deposed_while_a_stranger_holds_the_lock(
    cluster: Cluster, stranger: psycopg.Connection[Any]
) -> None:
    frozen = cluster.start(queues="default:1")
    wait_for(lambda: leader(cluster) is frozen)
    other = cluster.start(queues="default:1")
    frozen.signal(signal.SIGSTOP)
    wait_for(lambda: leader(cluster) is other)
    promotes(cluster)
    frozen.signal(signal.SIGCONT)
    wait_for(lambda: "no longer leads" in frozen.log())
    assert leader(cluster) is other
    assert stranger.execute("SELECT 1").fetchone() == (1,)


def test_a_session_of_the_same_role_that_holds_the_lock_is_reported_as_what_it_is(cluster: Cluster) -> None:
    with psycopg.connect(cluster.dsn, autocommit=True, application_name="a report") as conn:
        conn.execute(LOCK)
        first = cluster.start(queues="default:1")
        wait_for(lambda: leader(cluster) is first)
        wait_for(
            lambda: f"pid {conn.info.backend_pid}" in first.log() and "a report" in first.log(),
            what="the session is named in the log",
        )
        promotes(cluster)
        assert "was deposed" not in first.log()
        assert conn.execute("SELECT 1").fetchone() == (1,), "its session was left alone"


def test_a_leader_whose_row_was_deleted_still_says_that_it_leads(cluster: Cluster) -> None:
    first = cluster.start(queues="default:1")
    wait_for(lambda: leader(cluster) is first)
    cluster.db.execute("DELETE FROM pgworkers.host")
    wait_for(lambda: leader(cluster) is first, what="its new row says so")
    promotes(cluster)
    command = [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, "doctor", "-o", "json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=False, cwd="/").stdout)
    assert [one["level"] for one in told if one["check"] == "leader"] == ["ok"]
    assert "no longer leads" not in first.log()


def test_exactly_one_of_three_leads_and_says_so(cluster: Cluster) -> None:
    masters = [cluster.start(queues="default:1") for _ in range(3)]
    first = wait_for(lambda: leader(cluster))
    assert len(leaders(cluster)) == 1
    wait_for(lambda: first.titles("[leader]"))
    assert sum(bool(m.titles("[leader]")) for m in masters) == 1
    assert cluster.db.execute("SELECT count(*) FROM pgworkers.host WHERE leader").fetchone() == (1,)


def test_another_host_leads_after_the_leader_was_killed(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.start(queues="default:1")
    first = wait_for(lambda: leader(cluster))
    first.signal(signal.SIGKILL)
    first.wait()
    second = wait_for(
        lambda: (m := leader(cluster)) is not None and m is not first and m, timeout=E + S + BUSY
    )
    [job] = cluster.enqueue("work", delay="0.2 seconds")
    cluster.until(job, "succeeded", timeout=0.2 + PROMOTE + P + S + BUSY)
    assert wait_for(lambda: second.titles("[leader]"))


def test_a_frozen_leader_is_deposed_and_does_not_act_when_it_wakes_up(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.start(queues="default:1")
    frozen = wait_for(lambda: leader(cluster))
    before = leaders(cluster)
    frozen.signal(signal.SIGSTOP)
    wait_for(lambda: leaders(cluster) not in ([], before), what="another session holds the lock")
    other = wait_for(lambda: (m := leader(cluster)) is not None and m is not frozen and m)
    [job] = cluster.enqueue("work", delay="0.2 seconds")
    cluster.until(job, "succeeded")
    frozen.signal(signal.SIGCONT)
    wait_for(lambda: "no longer leads" in frozen.log())
    assert leader(cluster) is other
    assert len(leaders(cluster)) == 1
    wait_for(lambda: not frozen.titles("[leader]"))


def test_a_drained_leader_resigns_at_once(cluster: Cluster) -> None:
    first = cluster.start(queues="default:1")
    wait_for(lambda: leader(cluster) is first)
    second = cluster.start(queues="default:1")
    [job] = cluster.enqueue("work", args={"seconds": 3})
    wait_for(lambda: read(cluster.ledger))
    first.signal(signal.SIGTERM)
    wait_for(lambda: leader(cluster) is second)
    assert first.wait() == 0
    cluster.until(job, "succeeded")
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_a_leader_whose_session_was_terminated_is_replaced_or_wins_again(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    cluster.start(queues="default:1")
    [session] = wait_for(lambda: leaders(cluster))
    cluster.db.execute("SELECT pg_terminate_backend(%s)", (session,))
    wait_for(lambda: leaders(cluster) not in ([], [session]))
    [job] = cluster.enqueue("work", delay="0.2 seconds")
    cluster.until(job, "succeeded")


@pytest.mark.excused("I6", "both schemas count their jobs from 1, and there is one ledger")
def test_two_installs_in_one_database_have_a_leader_each(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    cluster.start(queues="default:1", PGWORKERS_SCHEMA="second")
    wait_for(lambda: len(leaders(cluster)) == 2)
    for schema in ("pgworkers", "second"):  # whose leader promotes what is due in it, and nothing else
        cluster.db.execute(f"SELECT {schema}.enqueue('work', queue => 'default', delay => interval '0.2 s')")
        wait_for(
            lambda name=schema: (
                cluster.db.execute(f"SELECT state::text, lease FROM {name}.jobs").fetchall()
                == [("succeeded", 1)]
            ),
            timeout=0.2 + PROMOTE + R + P + S + BUSY,
            what=f"{schema} is looked after",
        )


def test_each_duty_can_be_performed_by_hand(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, "duties"]
    listed = subprocess.run(
        [*command, "list", "-o", "json"], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    names = [row["name"] for row in json.loads(listed)]
    assert {
        "rescue",
        "promote",
        "fire_schedules",
        "partitions",
        "share_workers",
        "schedule_times",
        "unknown_tasks",
        "storage",
    } <= set(names)
    [job] = cluster.enqueue("work", delay="0.01 seconds")
    for name in names:
        done = subprocess.run([*command, "run", name], capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, (name, done.stderr)
    assert cluster.state(job) == "ready"
    unknown = subprocess.run(
        [*command, "run", "dishes"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert (unknown.returncode, "there is no duty" in unknown.stderr) == (3, True)
