"""S-07: advisory locks that any login may hold stop neither leadership, duties, limits nor claims."""

from __future__ import annotations

import signal
from typing import Any

import psycopg
from psycopg.errors import InsufficientPrivilege
from support.attacked_host import not_refused, serves
from support.cluster import Cluster, wait_for
from support.command import ForkedCommand
from support.logins import LoginDatabase
from support.pooler import require_bouncer

Session = psycopg.Connection[Any]

#: The locks that hosts and migrations are known to use, and those that a living host holds, whatever their numbers are.
KNOWN = """
SELECT (1885828967::bigint << 32) | n.oid::bigint FROM pg_catalog.pg_namespace n WHERE n.nspname = 'pgworkers'
UNION SELECT pg_catalog.hashtextextended('pgworkers migrate pgworkers', 0)
UNION SELECT pg_catalog.hashtextextended(word, 0)
  FROM unnest(ARRAY['pgworkers', 'pgworkers limits', 'pgworkers leader', 'narrow', 'tenant', 'key', 'default']) AS word
UNION SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_catalog.pg_locks l
 WHERE l.locktype = 'advisory' AND l.objsubid = 1
"""
PAIRS = """
SELECT l.classid::bigint::bit(32)::integer, l.objid::bigint::bit(32)::integer FROM pg_catalog.pg_locks l
 WHERE l.locktype = 'advisory' AND l.objsubid = 2
"""


def hold(conn: Session, function: str, keys: list[int], pairs: list[tuple[int, int]]) -> int:
    """Take every lock that is free. Returns how many were taken."""
    taken = 0
    for key in keys:
        row = conn.execute(f"SELECT pg_catalog.{function}(%s::bigint)".encode(), [key]).fetchone()
        taken += bool(row and row[0])
    for pair in pairs:
        row = conn.execute(
            f"SELECT pg_catalog.{function}(%s::integer, %s::integer)".encode(), list(pair)
        ).fetchone()
        taken += bool(row and row[0])
    return taken


#: How the stranger holds them. Through a pooler the sessions are the pooler's, whatever the lock is.
HOLDERS = (
    ("direct", "pg_try_advisory_xact_lock"),
    ("direct", "pg_try_advisory_xact_lock_shared"),
    ("pooled", "pg_try_advisory_xact_lock"),
)


def test_s07_locks_that_a_stranger_holds_stop_no_duty_and_no_claim(
    cluster: Cluster, database: LoginDatabase, admin: Session
) -> None:
    require_bouncer()
    first = cluster.start(dsn=database.dsn("worker"))
    wait_for(cluster.leader)
    rows = cluster.enqueue("narrow", 4, concurrency_key="k")
    for job in rows:
        cluster.until(job, "succeeded")
    keys = [row[0] for row in admin.execute(KNOWN)]
    pairs = [(row[0], row[1]) for row in admin.execute(PAIRS)]
    assert first.terminate() == 0
    cli = ForkedCommand(cluster.directory, PGWORKERS_DSN=database.dsn("viewer"), APP_QUEUES="default:2")
    for way, function in HOLDERS:
        with (
            database.connect("web", way) as web,
            database.connect("stranger", way) as conn,
            conn.transaction(force_rollback=True),
        ):
            assert hold(conn, function, keys, pairs) >= 1
            host = cluster.start(dsn=database.dsn("worker"))
            wait_for(cluster.leader, what="a host leads although its lock is held")
            serves(cluster, web)
            later = cluster.enqueue("work", delay="0.1s")  # a duty must promote it
            limited = cluster.enqueue("narrow", 3) + cluster.enqueue("tenant", 3, concurrency_key="k")
            for job in (*later, *limited):
                cluster.until(job, "succeeded")
            [(holder,)] = conn.execute("SELECT pg_catalog.pg_backend_pid()").fetchall()
            wait_for(lambda host=host, pid=holder: f"pid {pid}, role stranger" in host.log())
            told = {row["check"]: row for row in cli("doctor", "-o", "json", code=None).json()}["leader"]
            assert told["level"] == "warn", told
            assert "stranger" in told["what"], told
        assert host.terminate() == 0
        assert "Traceback" not in host.log()
        assert "was deposed" not in host.log()


def test_s07_a_frozen_leader_is_deposed_by_a_host_of_the_same_login(
    cluster: Cluster, database: LoginDatabase
) -> None:
    frozen = cluster.start(queues="default:1", dsn=database.dsn("worker"))
    wait_for(lambda: cluster.leader() is frozen)
    led = cluster.db.execute("SELECT pid FROM pgworkers.leader").fetchone()
    other = cluster.start(queues="default:1", dsn=database.dsn("worker"))
    frozen.signal(signal.SIGSTOP)
    wait_for(lambda: cluster.leader() is other)
    gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    wait_for(lambda: cluster.db.execute(gone, led).fetchone() == (0,), what="its session was ended")
    frozen.signal(signal.SIGCONT)
    wait_for(lambda: "no longer leads" in frozen.log())
    assert cluster.leader() is other


def test_s07_only_workers_write_the_term_and_only_our_roles_lock_its_rows(
    stranger: Session, web: Session, viewer: Session, operator: Session, worker: Session
) -> None:
    writes = ("UPDATE pgworkers.leader SET term = 1", "DELETE FROM pgworkers.leader")
    locks = (
        "SELECT FROM pgworkers.mutex FOR KEY SHARE",
        "LOCK TABLE pgworkers.migration IN SHARE ROW EXCLUSIVE MODE",
    )
    for session in (stranger, web, viewer):
        assert not_refused(session, (*writes, *locks), InsufficientPrivilege) == []
    assert not_refused(operator, writes, InsufficientPrivilege) == []
    takes_away = ("DELETE FROM pgworkers.mutex", "INSERT INTO pgworkers.mutex VALUES (1)")
    assert not_refused(worker, takes_away, InsufficientPrivilege) == []
    with worker.transaction():
        assert worker.execute("SELECT id FROM pgworkers.mutex WHERE id = 1 FOR UPDATE").fetchone() == (1,)
