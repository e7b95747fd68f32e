"""Two primaries: the standby is promoted while the old primary still serves a host; then the old one is gone.

Each side is a queue of its own. What both sides claimed has the same lease number on both: when the host of the old side
comes over, its leases must be another's there, and what it has to say about them must be refused.
"""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from support.cluster import FAST, Cluster, wait_for
from support.ledger import audit, read
from support.time_bounds import BACKOFF, BUSY, T_DB, T_HOST

from many_hosts.environment import PACKAGE
from many_hosts.failover import PORT, pair

CONTESTED = 4
ALONE = 10


def split(home: Path) -> list[str]:
    """Everything that went wrong; empty: nothing did."""
    with pair(home, synchronous=False) as (old, new):
        both = make_conninfo(
            host=f"{old.socket},{new.socket}", port=f"{PORT},{PORT}", user="postgres", dbname="pgworkers"
        )
        (home / "left").mkdir(), (home / "right").mkdir()
        left, right = (
            Cluster(old.dsn("pgworkers"), home / "left"),
            Cluster(old.dsn("pgworkers"), home / "right"),
        )
        more = FAST | {"PYTHONPATH": str(PACKAGE.parent)}
        try:
            left.start(queues=f"default:{CONTESTED},alone:1", dsn=both, **more)
            left.db.execute("UPDATE pgworkers.queue SET paused = true WHERE name = 'default'")
            contested = left.enqueue("gate", CONTESTED, args={"value": "whose?"})
            with psycopg.connect(new.dsn("pgworkers"), autocommit=True) as standby:
                wait_for(lambda: _seen(standby, contested) == CONTESTED, what="the standby has them")
            new.promote()
            right.dsn = new.dsn("pgworkers")
            right.reconnect()
            right.start(queues=f"default:{CONTESTED},alone:1", dsn=right.dsn, **more)
            # Both sides claim the same jobs, and give them the same number.
            wrong = []
            for side in (left, right):
                side.db.execute("UPDATE pgworkers.queue SET paused = false WHERE name = 'default'")
                side.db.execute("NOTIFY pgworkers, 'ready:default'")
                wait_for(
                    lambda s=side: len(read(s.ledger)) == CONTESTED, timeout=T_HOST + BUSY, what="claimed"
                )
                if _leases(side) != {1}:
                    wrong.append(f"leases {_leases(side)}: nothing was contested")
            for side in (left, right):  # each works by itself
                jobs = side.enqueue("work", ALONE, queue="alone")
                wait_for(lambda s=side: s.counts().get("succeeded", 0) == ALONE, what="a side by itself")
                wrong += audit(side.db, side.ledger, [*contested, *jobs], at_rest=False)
            left.db.close()
            old.crash()
            host = left.masters[0]
            wait_for(
                lambda: _hosts(right) == 2, timeout=T_DB + BUSY, what="the host of the old side has come over"
            )
            wait_for(
                lambda: not host.titles("#"),
                timeout=T_HOST + BUSY,
                what="it has stopped what is another's there",
            )
            left.open_gate()
            right.open_gate()
            right.until_all_ended(timeout=T_HOST + BACKOFF + BUSY)
            wrong += audit(right.db, right.ledger, [*contested, *jobs])
            ends = right.db.execute(
                "SELECT lease, state::text, count(*) FROM pgworkers.history WHERE id = ANY(%s) GROUP BY 1, 2",
                [contested],
            ).fetchall()
            if ends != [(1, "succeeded", CONTESTED)]:
                wrong.append(f"the contested jobs ended as {ends}")
            # It is a host like any other now.
            right.masters[0].terminate()
            before = len(read(left.ledger))  # ids there are also those of jobs that only the old side knew
            last = right.enqueue("work", ALONE, queue="alone")
            right.until_all_ended()
            if {entry.job for entry in read(left.ledger)[before:] if entry.kind == "END"} != set(last):
                wrong.append("the host that came over does not work")
            return wrong
        finally:
            with open(os.devnull, "w") as quiet, redirect_stdout(quiet):
                left.close()
                right.close()


def _seen(conn: psycopg.Connection[Any], jobs: list[int]) -> int:
    row = conn.execute("SELECT count(*) FROM pgworkers.job WHERE id = ANY(%s)", [jobs]).fetchone()
    return row[0] if row else 0


def _leases(side: Cluster) -> set[int]:
    return {row[0] for row in side.db.execute("SELECT lease FROM pgworkers.job WHERE state = 'running'")}


def _hosts(side: Cluster) -> int:
    row = side.db.execute("SELECT count(*) FROM pgworkers.host WHERE renewed_at > now() - lease").fetchone()
    return row[0] if row else 0
