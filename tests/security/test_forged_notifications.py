"""S-01, S-02, S-08: what a login that may hardly do anything can send on our channels, against a living host."""

from __future__ import annotations

from typing import Any

import psutil
import psycopg
import pytest
from support.attacked_host import begins, renewals, serves
from support.cluster import Cluster, Master
from support.logins import LoginDatabase

from pgworkers import App
from pgworkers.errors import PgworkersError

CHANNELS = ("pgworkers", "pgworkers_done", "pgworkers_doctor", "PGWORKERS", "pgworkers_request")
#: {} is the id of a running job, {host} that of the host.
PAYLOADS = (
    "cancel:²",
    "cancel:²{}",
    "batch:²",
    "deadline:²",
    "cancel:{}",
    "cancel:0{}",
    "cancel:+{}",
    "cancel: {}",
    "cancel:{}\n",
    "cancel:{},{}",
    "cancel:*",
    "cancel:-1",
    "cancel:99999999999999999999999999999",
    "cancel:\u0661",
    "cancel:",
    "batch:\u0663",
    "\u00b2",
    "deadline:{}",
    "batch:{}",
    "request:{}",
    "ready:default",
    "ready:",
    "ready:nowhere",
    "ready:default:{host}",
    "one:default:{host}",
    "one:nowhere:{host}",
    "one:default:{host}\n",
    "one:default:00000000-0000-0000-0000-000000000000",
    "one:default:",
    "ready:\u202e\x1b[2J",
    "{}",
    "*",
    "",
    ":",
    "reconnected",
    "\x00".replace("\x00", "\x01"),
    "\U0010ffff" * 1900,
    "9" * 7999,
    "cancel:" + "1," * 3900,
    '{{"cancel": [{}]}}',
)


def test_s01_s02_no_notification_of_any_login_ends_a_host_or_stops_a_job(
    running_host: Master,
    cluster: Cluster,
    stranger: psycopg.Connection[Any],
    web: psycopg.Connection[Any],
    viewer: psycopg.Connection[Any],
    operator: psycopg.Connection[Any],
) -> None:
    job = begins(cluster)
    [(host,)] = cluster.db.execute("SELECT id FROM pgworkers.host").fetchall()
    for login in (stranger, web, viewer):
        for channel in (*CHANNELS, str(host)):
            texts = [payload.format(*[job] * payload.count("{}"), host=host) for payload in PAYLOADS]
            login.execute(
                "SELECT pg_catalog.pg_notify(%s, text) FROM unnest(%s::text[]) AS text", [channel, texts]
            )
            login.execute(  # alone, too: notifications of one transaction arrive together
                "SELECT pg_catalog.pg_notify(%s, %s)", [channel, f"cancel:{job}"]
            )
        # all at once, in one transaction, with the ids of every job that there may be
        login.execute(
            "SELECT pg_catalog.pg_notify('pgworkers', 'cancel:' || i) FROM generate_series(1, 2000) i"
        )
        login.execute(
            "SELECT pg_catalog.pg_notify('pgworkers', 'cancel:²' || i) FROM generate_series(1, 3) i"
        )
    serves(cluster, web)
    renewals(cluster, 3)  # what a payload breaks is also found when the session is read for a renewal
    assert cluster.state(job) == "running"
    assert "Traceback" not in running_host.log()
    assert "failed" not in running_host.log()
    cluster.open_gate()
    cluster.until(job, "succeeded")
    assert running_host.process.poll() is None
    cluster.close_gate()
    other = begins(cluster)
    operator.execute("SELECT pgworkers.cancel(%s)", [other])
    assert cluster.until(other, "cancelled")["verdict"] == "cancelled", "a true one is heard"


def test_s02_a_waiting_client_believes_only_the_row(
    running_host: Master, cluster: Cluster, database: LoginDatabase, way: str
) -> None:
    """`enqueue --wait` and `job.result()` listen, too: a forged end is none."""
    job = begins(cluster, args={"value": 3})
    app = App(dsn=database.dsn("worker"))
    try:
        for login in ("stranger", "viewer", "web"):
            with database.connect(login, way) as conn:
                for text in (str(job), f"{job},", f"{job}\u00b2", "\u00b2", "*", f"batch:{job}", ""):
                    conn.execute("SELECT pg_catalog.pg_notify('pgworkers_done', %s)", [text])
            with pytest.raises(PgworkersError):
                app.job(job).result(timeout=0.3)
        cluster.open_gate()
        assert app.job(job).result(timeout=60) == 3
    finally:
        app.close()


def test_s08_a_flood_for_queues_that_do_not_exist_leaves_no_memory_behind(
    running_host: Master, cluster: Cluster, stranger: psycopg.Connection[Any], web: psycopg.Connection[Any]
) -> None:
    process = psutil.Process(running_host.pid)

    serves(cluster, web)
    before = peak = process.memory_info().rss
    for start in range(0, 20_000, 2_000):
        stranger.execute(
            "SELECT pg_catalog.pg_notify('pgworkers', 'ready:' || i || repeat('x', 7900))"
            " FROM generate_series(%s::int, %s::int) i",
            [start + 1, start + 2_000],
        )
        peak = max(peak, process.memory_info().rss)
    serves(cluster, web)
    grown = max(peak, process.memory_info().rss) - before
    assert grown < 8 << 20, f"{grown >> 20} MB for 158 MB of notifications"
    assert running_host.process.poll() is None
