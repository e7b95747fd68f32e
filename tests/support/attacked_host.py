"""What a host must still do while it is attacked: run jobs, renew its row, and let people read."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable
from typing import Any

import psycopg
from support.cluster import Cluster, Master, wait_for
from support.command import ForkedCommand
from support.ledger import read

#: Commands that read. None may show a traceback, whatever the tables hold.
READERS = (
    ("jobs", "list", "-o", "json"),
    ("queues", "list"),
    ("top", "--once"),
)


def serves(cluster: Cluster, web: psycopg.Connection[Any]) -> None:
    """A job of the login `web` runs: all that was sent on the host's sessions before was survived."""
    row = web.execute("SELECT (pgworkers.enqueue('work', '{}')).id").fetchone()
    assert row is not None
    cluster.until(row[0], "succeeded")


def begins(cluster: Cluster, task: str = "gate", **more: Any) -> int:
    """Enqueue a job and wait until its handler runs."""
    [job] = cluster.enqueue(task, **more)
    wait_for(lambda: any(entry.job == job for entry in read(cluster.ledger)), what="it runs")
    return job


def not_refused(
    conn: psycopg.Connection[Any], statements: Iterable[str], *errors: type[psycopg.Error]
) -> list[str]:
    """The statements that the database does not refuse with one of these errors, and what it did instead."""
    wrong = []
    for statement in statements:
        try:
            with conn.transaction():  # LOCK TABLE needs one
                conn.execute(statement.encode())
        except errors:
            continue
        except psycopg.Error as error:
            wrong.append(f"{statement[:200]}: {error!r}")
        else:
            wrong.append(f"{statement[:200]}: done")
    return wrong


def renewals(cluster: Cluster, times: int) -> None:
    """Wait until the host has renewed its row so often; each time it reads what its jobs should do."""
    query = "SELECT max(renewed_at) FROM pgworkers.host"
    for _ in range(times):
        before = cluster.db.execute(query).fetchone()
        wait_for(lambda before=before: cluster.db.execute(query).fetchone() != before, what="a renewal")


def unreadable(cluster: Cluster, dsn: str, *more: tuple[str, ...]) -> list[str]:
    """The readers that fail, with what they say."""
    cli = ForkedCommand(cluster.directory, PGWORKERS_DSN=dsn, APP_QUEUES="default:2")
    wrong = []
    for words in (*READERS, *more):
        said = cli(*words, code=None)
        text = said.out + said.err
        if "Traceback" in text or said.code != 0:
            wrong.append(f"{' '.join(words)} ended with {said.code}: {text[-500:]}")
    return wrong


def odd_samples(master: Master) -> list[str]:
    """Samples of /metrics whose value is not a finite number."""
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    text = urllib.request.urlopen(lines[0].split()[1], timeout=60).read().decode()
    return [line for line in text.splitlines() if re.search(r" [+-]?(inf|nan)$", line, re.IGNORECASE)]
