"""`pgworkers queues scale`, `limit` and `limits` on a real database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import Command, ForkedCommand

from pgworkers import App, UsageError

Db = psycopg.Connection[Any]


@pytest.fixture
def cli(tmp_path: Path, dsn: str) -> Command:
    return ForkedCommand(tmp_path, DATABASE_URL=dsn)


def row(db: Db) -> tuple[int | None, int | None]:
    found = db.execute(
        "SELECT workers, cluster_workers FROM pgworkers.queue WHERE name = 'reports'"
    ).fetchone()
    assert found is not None
    return found[0], found[1]


def test_a_queue_is_scaled_on_each_host_over_all_and_back(cli: Command, db: Db) -> None:
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('reports')")
    assert cli("queues", "scale", "reports", "8").lines() == ["reports: 8 workers on each host"]
    assert row(db) == (8, None)
    assert cli("queues", "scale", "reports", "--cluster", "12").lines() == [
        "reports: 12 workers over all hosts"
    ]
    assert row(db) == (None, 12)
    assert cli("queues", "scale", "reports", "--default", "-o", "json").json() == [
        {"queue": "reports", "workers": None, "cluster": None}
    ]
    assert row(db) == (None, None)


def test_the_list_shows_the_effective_number_of_workers(cli: Command, db: Db) -> None:
    def workers() -> str:
        heading, line = cli("queues", "list").lines()
        return line[line.index("active") + 6 : heading.index("READY") - 2].strip()

    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('reports')")
    assert workers() == "no host"
    for pid in (1, 2):
        db.execute(
            "INSERT INTO pgworkers.host (id, name, pid, app, version, queues, workers, lease)"
            " VALUES (gen_random_uuid(), 'web', %s, 'app', '1', '{reports}',"
            """ '[{"queue": "reports", "state": "idle"}, {"queue": "reports", "state": "busy"}]', '30s')""",
            (pid,),
        )
    assert workers() == "4 on 2 hosts"
    db.execute("UPDATE pgworkers.host SET renewed_at = now() - interval '1 hour' WHERE pid = 2")
    assert workers() == "2 on 1 host"
    db.execute("UPDATE pgworkers.queue SET declared_cluster_workers = 6")
    assert workers() == "6 over all hosts"
    cli("queues", "scale", "reports", "8")
    assert workers() == "8 a host (scaled)"
    cli("queues", "scale", "reports", "--cluster", "12")
    assert workers() == "12 over all hosts (scaled)"


def test_what_cannot_be_meant_changes_nothing(cli: Command, db: Db) -> None:
    db.execute("INSERT INTO pgworkers.queue (name, workers) VALUES ('reports', 3)")
    assert "say one of" in cli.fails("queues", "scale", "reports", code=2)
    assert "say one of" in cli.fails("queues", "scale", "reports", "4", "--cluster", "2", code=2)
    assert "did you mean reports?" in cli.fails("queues", "scale", "report", "4", code=3)
    assert "say N or --default" in cli.fails("queues", "limit", "4", code=2)
    assert "say N or --default" in cli.fails("queues", "limit", "--task", "t", code=2)
    assert "say N or --default" in cli.fails("queues", "limit", "--task", "t", "--key", "k", "1", code=2)
    assert row(db) == (3, None)
    assert db.execute("SELECT count(*) FROM pgworkers.concurrency").fetchone() == (0,)


def test_limits_are_set_listed_and_removed(cli: Command) -> None:
    assert cli("queues", "limits").err == "no limits\n"
    assert cli("queues", "limit", "--task", "render", "4").lines() == ["task render: 4 at once"]
    cli("queues", "limit", "--key", "tenant:7", "0")
    assert [line.split()[:4] for line in cli("queues", "limits").lines()[1:]] == [
        ["task", "render", "4", "0"],
        ["key", "tenant:7", "0", "0"],
    ]
    assert cli("queues", "limit", "--key", "tenant:7", "--default").lines() == [
        "key tenant:7: as the app says"
    ]
    assert [limit["name"] for limit in cli("queues", "limits", "-o", "json").json()] == ["render"]


def test_the_retention_of_a_queue_is_set_and_given_back(cli: Command, db: Db) -> None:
    db.execute("INSERT INTO pgworkers.queue (name, declared_retention) VALUES ('reports', '2 days')")
    assert cli("queues", "list", "-o", "json").json()[0]["retention"] == 2 * 86400
    assert cli("queues", "retention", "reports", "365d").out == "reports: finished jobs are kept for 365d\n"
    assert cli("queues", "list", "-o", "json").json()[0]["retention"] == 365 * 86400
    cli("queues", "retention", "reports", "0s")
    assert cli("queues", "list", "-o", "json").json()[0]["retention"] == 0
    cli("queues", "retention", "reports", "--default")
    assert cli("queues", "list", "-o", "json").json()[0]["retention"] == 2 * 86400
    for words in ((), ("1d", "--default"), ("40000d",), ("soon",)):
        cli("queues", "retention", "reports", *words, code=2)
    cli("queues", "retention", "unknown", "1d", code=3)


def test_an_app_declares_the_retention_of_a_queue() -> None:
    app = App()
    app.queue("audit", retention="365d")
    app.queue("mail")
    assert [(one.name, one.retention) for one in app.describe().queues] == [
        ("audit", 365 * 86400.0),
        ("mail", None),
    ]
    with pytest.raises(UsageError, match="retention"):
        app.queue("bad", retention="soon")
