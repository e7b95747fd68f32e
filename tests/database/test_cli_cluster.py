"""`pgworkers queues`, `hosts`, `workers` and `migrate` on a real database, and databases that cannot be used."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.cluster import wait_for
from support.command import Command, ForkedCommand
from support.later_version import later_migrations, later_version

from pgworkers.job.cancel import purge_dead, purge_waiting
from pgworkers.postgres.migrate import known_migrations, status, up
from pgworkers.postgres.statements import run

Db = psycopg.Connection[Any]
SECRET = "canary-s3cret"


@pytest.fixture
def cli(tmp_path: Path, dsn: str) -> Command:
    return ForkedCommand(tmp_path, DATABASE_URL=dsn)


def test_queues_are_listed_paused_and_resumed(cli: Command, db: Db) -> None:
    db.execute("SELECT pgworkers.enqueue('render', queue => 'reports') FROM generate_series(1, 3)")
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('api')")
    found = {row["name"]: row for row in cli("queues", "list", "-o", "json").json()}
    assert (found["reports"]["ready"], found["api"]["ready"]) == (3, 0)
    assert cli("queues", "pause", "reports", "api").lines() == ["reports paused", "api paused"]
    assert cli("queues", "-q").lines() == ["api", "reports"]
    assert [line.split()[1] for line in cli("queues").lines()[1:]] == ["paused", "paused"]
    cli("queues", "resume", "reports")
    assert [row["paused"] for row in cli("queues", "-o", "json").json()] == [True, False]


def test_an_unknown_queue_changes_nothing(cli: Command, db: Db) -> None:
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('reports')")
    assert "did you mean reports?" in cli.fails("queues", "pause", "reports", "report", code=3)
    assert cli("queues", "-o", "json").json()[0]["paused"] is False


def test_hosts_and_workers(cli: Command, db: Db) -> None:
    assert "pgworkers run" in cli("hosts").err
    assert "no host has reported any" in cli("workers").err
    workers = [
        {
            "queue": "api",
            "slot": 0,
            "pid": 71,
            "state": "busy",
            "job_id": 9,
            "task": "render",
            "since": 72.5,
            "jobs": 3,
        }
    ]
    db.execute(
        """INSERT INTO pgworkers.host (id, name, pid, label, app, version, queues, lease, workers, renewed_at)
           VALUES (gen_random_uuid(), 'alpha', 70, 'blue', 'app.py', 'v1', '{api}', '1 h', %s, now()),
                  (gen_random_uuid(), 'omega', 80, '', 'app.py', 'v1', '{api}', '30 s', '[]', now() - interval '1 h')""",
        [json.dumps(workers)],
    )
    alpha, omega = sorted(cli("hosts").lines()[1:])
    assert alpha.split()[:6] == ["alpha", "70", "running", "blue", "app.py", "v1"]
    assert omega.split()[:3] == ["omega", "80", "lost"]
    assert cli("workers").lines()[1].split() == [
        *("alpha", "70", "blue", "api/0", "71", "busy", "#9", "render", "1m12s", "3")
    ]
    assert cli("workers", "list", "-o", "json").json()[0]["job_id"] == 9
    db.execute("UPDATE pgworkers.host SET renewed_at = now() - interval '61 min' WHERE name = 'alpha'")
    assert cli("workers").lines()[1].split()[5] == "lost"


def test_migrate_makes_the_schema_once(tmp_path: Path, empty_dsn: str) -> None:
    cli = ForkedCommand(tmp_path, DATABASE_URL=empty_dsn)
    assert "run pgworkers migrate up" in cli.fails("jobs", "list", code=5)
    assert "pending" in cli("migrate", "status", code=5).out
    assert cli("migrate", "up").out.startswith("applied 0001_")
    assert cli("migrate", "up").out == ""
    assert {row["state"] for row in cli("migrate", "status", "-o", "json").json()} == {"applied"}
    assert cli("jobs", "list").err == "no jobs\n"


def test_another_schema_is_another_world(tmp_path: Path, dsn: str, db: Db) -> None:
    db.execute("SELECT pgworkers.enqueue('render')")
    cli = ForkedCommand(tmp_path, DATABASE_URL=dsn, PGWORKERS_SCHEMA="jobs")
    assert "no schema jobs" in cli.fails("jobs", "list", code=5)
    cli("migrate", "up")
    assert cli("jobs", "list", "-o", "json").json() == []
    assert len(cli("jobs", "list", "--schema", "pgworkers", "-o", "json").json()) == 1
    assert "lower-case" in cli.fails("jobs", "list", "--schema", "My Jobs", code=2)


def test_the_printed_sql_is_what_up_does(tmp_path: Path, empty_dsn: str) -> None:
    script = ForkedCommand(tmp_path)("migrate", "sql", "--schema", "jobs").out
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(script.encode())
    cli = ForkedCommand(tmp_path, DATABASE_URL=empty_dsn, PGWORKERS_SCHEMA="jobs")
    assert cli("migrate", "status").code == 0
    assert cli("migrate", "up").out == ""


def test_a_newer_schema_is_refused(cli: Command, db: Db) -> None:
    db.execute("INSERT INTO pgworkers.migration VALUES (9999, '9999_future', 'x', 9999)")
    assert "newer than this pgworkers" in cli.fails("jobs", "list", code=5)
    assert "newer than this pgworkers" in cli.fails("migrate", "up", code=5)
    assert "unknown" in cli("migrate", "status", code=5).lines()[-1]
    assert "newer than this pgworkers" in cli.fails("migrate", "sql", "--pending", code=5)


def test_a_newer_schema_that_serves_this_version_is_used(cli: Command, db: Db) -> None:
    newest = known_migrations()[-1].version
    db.execute("INSERT INTO pgworkers.migration VALUES (9999, '9999_future', 'x', %s)", (newest,))
    assert cli("jobs", "list").err == "no jobs\n"
    assert cli("migrate", "up").err == (
        "schema pgworkers is newer than this pgworkers (9999_future), which it still serves\n"
    )
    row = cli("migrate", "status", "-o", "json").json()[-1]
    assert (row["name"], row["state"], row["serves"]) == ("9999_future", "newer", newest)
    assert cli("migrate", "status").lines()[-1].split()[:3] == ["9999_future", "newer", f"{newest:04d}"]


def test_the_pending_sql_brings_an_older_schema_up_to_date(tmp_path: Path, empty_dsn: str) -> None:
    pending = later_migrations(
        colour="CREATE TABLE pgworkers.colour (name text);", shade="CREATE TABLE pgworkers.shade (name text);"
    )
    newer = later_version(tmp_path / "newer", colour=pending[0].text, shade=pending[1].text)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        up(conn, "pgworkers")
        cli = Command(tmp_path, DATABASE_URL=empty_dsn, PYTHONPATH=newer)
        script = cli("migrate", "sql", "--pending").out
        assert [line for line in script.splitlines() if line.startswith("-- 000")] == [
            f"-- {migration.name}" for migration in pending
        ]
        conn.execute(script.encode())
    assert cli("migrate", "status").code == 0
    assert "nothing is pending" in cli("migrate", "sql", "--pending").out


def test_a_migration_that_waits_for_a_lock_can_be_interrupted(tmp_path: Path, empty_dsn: str) -> None:
    [colour] = later_migrations(colour="CREATE TABLE pgworkers.colour (name text);")
    newer = later_version(tmp_path / "newer", colour=colour.text)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        up(conn, "pgworkers")
        cli = Command(tmp_path, DATABASE_URL=empty_dsn, PYTHONPATH=newer)
        waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'pgworkers.migration'::regclass"
        with conn.transaction():
            conn.execute("LOCK TABLE pgworkers.migration IN ROW EXCLUSIVE MODE")
            with subprocess.Popen(
                cli.argv("migrate", "up"), cwd=tmp_path, env=cli.environ, stderr=subprocess.PIPE, text=True
            ) as started:
                assert started.stderr is not None
                line = started.stderr.readline()
                assert f"{colour.name} waits for a lock of " in line
                wait_for(lambda: conn.execute(waiting).fetchone(), what="the next attempt")
                started.send_signal(signal.SIGINT)
                assert started.wait(60) == 130
        assert [row.state for row in status(conn, "pgworkers", [*known_migrations(), colour])][
            -1
        ] == "pending"


def test_an_unreachable_database_is_named_without_its_password(tmp_path: Path) -> None:
    with socket.socket() as held:  # bound and not listening: no other process can answer on that port
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        address = f"postgresql://bob:{SECRET}@127.0.0.1:{port}/app"
        cli = ForkedCommand(tmp_path, DATABASE_URL=address)
        for words in (["jobs", "list"], ["queues"], ["migrate", "up"], ["enqueue", "render"]):
            told = cli.fails(*words, code=4)
            assert f"bob@127.0.0.1:{port}" in told
            assert SECRET not in told
        said = cli("-v", "jobs", "list", code=4)
        assert "Traceback" in said.err
        assert SECRET not in said.err
        assert SECRET not in cli("config", "show").out


@pytest.mark.parametrize(
    "address", [f"postgres//bob:{SECRET}@db/app", f"host=db password='{SECRET}", f"port={SECRET}"]
)
def test_a_dsn_that_cannot_be_read_is_not_repeated(tmp_path: Path, address: str) -> None:
    cli = ForkedCommand(tmp_path, PGWORKERS_DSN=address, PGWORKERS_CONNECT_TIMEOUT="2s")
    said = cli("-v", "jobs", "list", code=None)
    assert said.code in (2, 4)
    if "password" in address or "//" in address:
        assert SECRET not in said.err


def test_a_role_without_rights_gets_a_clear_error(tmp_path: Path, dsn: str, db: Db) -> None:
    role = f"nobody_{db.info.dbname}"
    db.execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        cli = ForkedCommand(tmp_path, DATABASE_URL=make_conninfo(dsn, user=role))
        assert "permission denied" in cli.fails("jobs", "list", code=1)
    finally:
        db.execute(f'DROP ROLE "{role}"')


def test_no_database_at_all_says_what_to_do(tmp_path: Path) -> None:
    told = ForkedCommand(tmp_path).fails("jobs", "list", code=4)
    assert "DATABASE_URL" in told
    assert not (tmp_path / ".pgworkers").exists()


def test_a_queue_is_purged_of_what_waits_and_of_its_dead(cli: Command, db: Db) -> None:
    db.execute("SELECT pgworkers.enqueue('render', queue => 'reports') FROM generate_series(1, 3)")
    db.execute("SELECT pgworkers.enqueue('render', queue => 'reports', delay => '1 hour')")
    db.execute("SELECT pgworkers.enqueue('render', queue => 'api')")
    assert "no terminal to ask on" in cli.fails("queues", "purge", "reports", code=2)
    assert "there is no queue" in cli.fails("queues", "purge", "report", code=3)
    dead = db.execute("SELECT id FROM pgworkers.job WHERE queue = 'reports' ORDER BY id LIMIT 1").fetchone()
    db.execute("SELECT pgworkers.discard(%s)", dead)
    assert cli("queues", "purge", "reports", "-y").lines() == ["cancelled 3 jobs"]
    found = {row["name"]: row for row in cli("queues", "-o", "json").json()}
    assert (found["reports"]["ready"], found["reports"]["dead"], found["api"]["ready"]) == (0, 1, 1)
    ended = "SELECT verdict, error FROM pgworkers.jobs WHERE queue = 'reports' AND state = 'cancelled'"
    assert set(db.execute(ended)) == {("cancelled", "purged by an operator")}
    assert cli("jobs", "retry", "--state", "dead", "-y").lines() == ["retried 1 job"], "not what was purged"
    db.execute("SELECT pgworkers.discard(%s)", dead)
    assert cli("queues", "purge", "reports", "--dead", "-y").lines() == ["purged 1 job"]
    left = "SELECT queue, state::text FROM pgworkers.jobs WHERE state <> 'cancelled'"
    assert db.execute(left).fetchall() == [("api", "ready")]


def test_a_purge_lets_go_on_what_has_begun_meanwhile(db: Db) -> None:
    db.execute("SELECT pgworkers.enqueue('render') FROM generate_series(1, 2)")
    running, waits = (row[0] for row in db.execute("SELECT id FROM pgworkers.job ORDER BY id"))
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid() WHERE id = %s", [running]
    )
    assert run(db, "pgworkers", purge_waiting([running, waits])) == {running: "running", waits: "cancelled"}
    assert db.execute("SELECT id, state::text, cancel_at FROM pgworkers.job").fetchall() == [
        (running, "running", None)
    ]


def test_a_purge_spares_a_dead_job_that_was_just_put_back(cli: Command, db: Db) -> None:
    db.execute("SELECT pgworkers.enqueue('render') FROM generate_series(1, 2)")
    db.execute("SELECT pgworkers.discard(id) FROM pgworkers.job")
    ids = [row[0] for row in db.execute("SELECT id FROM pgworkers.jobs ORDER BY id")]
    cli("jobs", "retry", str(ids[0]))
    assert run(db, "pgworkers", purge_dead(ids)) == ids[1:]
    assert db.execute("SELECT id, state::text FROM pgworkers.jobs").fetchall() == [(ids[0], "ready")]


def test_drain_waits_until_a_queue_is_empty(cli: Command, db: Db) -> None:
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('api')")
    db.execute("SELECT pgworkers.enqueue('render', queue => 'reports')")
    assert "empty" in cli("queues", "drain", "api").err
    assert "1 job is left in reports" in cli.fails("queues", "drain", "reports", "--timeout", "0.1s", code=1)
    waits = threading.Timer(0.5, lambda: db.execute("SELECT pgworkers.discard(id) FROM pgworkers.job"))
    waits.start()
    assert cli("queues", "drain", "reports", "api", "-o", "json").json() == [
        {"queue": "reports", "jobs": 0},
        {"queue": "api", "jobs": 0},
    ]
    waits.join()


def test_duties_are_printed_as_data(cli: Command) -> None:
    told = cli("duties", "list", "-o", "json").json()
    assert {"name", "every", "seen", "at_once", "doc"} == set(told[0])
    assert "rescue" in {duty["name"] for duty in told}
    assert cli("duties", "run", "prune", "-o", "json").json() == {"duty": "prune", "rows": 0}
    assert cli("duties", "run", "prune").err == "prune: 0 rows\n"


def test_a_worker_that_is_not_there_is_not_found(cli: Command) -> None:
    for words in (["stack", "nosuch"], ["stack", "api/9"], ["stop", "nosuch"]):
        assert f"there is no worker {words[1]!r}" in cli.fails("workers", *words, code=3)
    assert "no host has reported any" in cli("workers", "stack").err
