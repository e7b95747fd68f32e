"""`pgworkers bench`: it says what it measured and leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.cluster import wait_for
from support.command import Command

Db = psycopg.Connection[Any]
SMALL = ("bench", "--jobs", "200", "--tries", "10", "-w", "1")


@pytest.fixture
def cli(tmp_path: Path, dsn: str) -> Command:
    return Command(tmp_path, DATABASE_URL=dsn)


def schemas(db: Db) -> list[str]:
    found = db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pgworkers_bench%'").fetchall()
    return [name for (name,) in found]


def test_it_measures_everything_in_a_schema_of_its_own(cli: Command, db: Db) -> None:
    db.execute("CREATE SCHEMA pgworkers_bench_0ld")  # of a run that was killed
    found = {row["measure"]: row["value"] for row in cli(*SMALL, "-q", "-o", "json").json()}
    latencies = [f"{name} {part}" for name in ("round trip", "notify", "pickup") for part in ("p50", "p99")]
    assert set(found) == {*latencies, "enqueue single", "enqueue bulk", "drain", "wal per job"}
    assert all(value > 0 for value in found.values()), found
    assert schemas(db) == []
    assert db.execute("SELECT count(*) FROM pgworkers.history").fetchone() == (0,)  # the user's own


def test_ctrl_c_leaves_nothing(cli: Command, db: Db) -> None:
    words = ("bench", "--jobs", "1000000", "--tries", "10", "-w", "1")
    process = subprocess.Popen(
        cli.argv(*words), cwd=cli.cwd, env=cli.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: schemas(db), what="its schema is there")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert schemas(db) == []


def test_it_is_refused_politely_where_it_may_not_create(cli: Command, db: Db, dsn: str) -> None:
    role = f"bench_{db.info.dbname}"
    db.execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        text = cli.fails(*SMALL, "--dsn", make_conninfo(dsn, user=role), code=1)
    finally:
        db.execute(f'DROP ROLE "{role}"')
    assert "may not create a schema" in text
    assert "nothing was measured" in text
