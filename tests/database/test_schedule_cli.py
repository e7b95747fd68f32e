"""`pgworkers schedules` on a real database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import Command, ForkedCommand
from support.schedule_leader import Leader

from pgworkers.specs import ScheduleSpec

Db = psycopg.Connection[Any]


@pytest.fixture
def cli(tmp_path: Path, dsn: str) -> Command:
    return ForkedCommand(tmp_path, DATABASE_URL=dsn)


@pytest.fixture
def leader(dsn: str) -> Iterator[Leader]:
    made = Leader(dsn)
    yield made
    made.close()


def test_list(cli: Command, db: Db, leader: Leader) -> None:
    assert "no schedules yet" in cli("schedules").err
    leader.sync(
        ScheduleSpec("nightly", "report", cron="0 3 * * *", tz="Europe/Berlin"),
        ScheduleSpec("often", "ping", every=300.0),
        ScheduleSpec("broken", "ping", cron="* * * * *"),
    )
    db.execute("UPDATE pgworkers.schedule SET tz = 'Mars/Olympus' WHERE name = 'broken'")
    db.execute(
        "UPDATE pgworkers.schedule SET planned_until = now() - interval '10 minutes' WHERE name = 'often'"
    )
    assert leader.fire() == 1
    lines = cli("schedules", "list").lines()
    assert lines[0].split() == ["NAME", "SCOPE", "STATE", "WHEN", "TASK", "NEXT", "LAST", "ERROR"]
    assert "failing" in lines[1]
    assert "there is no time zone 'Mars/Olympus'" in lines[1]
    assert "active" in lines[2]
    assert "0 3 * * * Europe/Berlin" in lines[2]
    assert "every 5m" in lines[3]
    assert "ago ready" in lines[3]
    assert cli("schedules", "-q").lines() == ["broken", "nightly", "often"]
    found = {row["name"]: row for row in cli("schedules", "list", "-o", "json").json()}
    assert found["often"]["last_outcome"] == "ready"
    assert found["nightly"]["state"] == "active"
    assert datetime.fromisoformat(found["nightly"]["next_at"]).minute == 0
    assert len(cli("schedules", "list", "-o", "ndjson", "--limit", "2").lines()) == 2


def test_next(cli: Command, leader: Leader) -> None:
    leader.sync(ScheduleSpec("nightly", "t", cron="30 2 * * *", tz="Europe/Berlin"))
    lines = cli("schedules", "next", "nightly").lines()
    assert len(lines) == 6
    assert all("T02:30:00+0" in line or "T03:00:00+02" in line for line in lines[1:])
    assert len(cli("schedules", "next", "nightly", "-n", "20", "-o", "ndjson").lines()) == 20
    cli("schedules", "pause", "nightly")
    assert "is paused" in cli("schedules", "next", "nightly").err
    assert "did you mean nightly?" in cli.fails("schedules", "next", "nigtly", code=3)


def test_run_is_a_tick_out_of_turn(cli: Command, db: Db, leader: Leader) -> None:
    leader.sync(ScheduleSpec("nightly", "report", cron="0 3 1 1 *", args={"x": 1}, overlap="skip"))
    leader.fire()
    before = db.execute("SELECT planned_until, next_at, due_at FROM pgworkers.schedule").fetchall()
    cli("schedules", "pause", "nightly")
    cli("schedules", "resume", "nightly")
    leader.fire()
    cli("schedules", "pause", "nightly")
    job = cli("schedules", "run", "nightly", "-q").out.strip()
    row = db.execute(
        "SELECT task, args, meta ->> 'manual', state::text FROM pgworkers.job WHERE id = %s", [job]
    )
    assert row.fetchone() == ("report", {"x": 1}, "true", "ready")
    assert "still live" in cli.fails("schedules", "run", "nightly", code=1)
    cli("schedules", "resume", "nightly")
    assert leader.fire() == 0
    after = db.execute("SELECT planned_until, next_at, due_at FROM pgworkers.schedule").fetchall()
    assert after[0][1:] == before[0][1:], "the calendar has not moved"
    ticks = db.execute("SELECT manual, outcome FROM pgworkers.ticks ORDER BY at").fetchall()
    assert ticks == [(True, "ready"), (True, "skipped")]


def test_scopes(cli: Command, leader: Leader) -> None:
    leader.sync(ScheduleSpec("s", "t", cron="0 3 * * *", scope_kind="tenant", scopes={"a": {}, "b": {}}))
    assert "say --scope, one of a, b" in cli.fails("schedules", "run", "s", code=2)
    assert cli("schedules", "run", "s", "--scope", "a", "-o", "json").json()[0]["scope"] == "a"
    assert cli("schedules", "pause", "s", "--scope", "b").out == "s (b) paused\n"
    assert cli("schedules", "pause", "s", "--scope", "b").out == "s (b) was paused already\n"
    assert "has no scope 'z'" in cli.fails("schedules", "pause", "s", "--scope", "z", code=3)
    states = {row["scope"]: row["state"] for row in cli("schedules", "-o", "json").json()}
    assert states == {"": "template", "a": "active", "b": "paused"}
    assert cli("schedules", "remove", "s", "--scope", "b").out == "s (b) removed\n"
    assert cli("schedules", "remove", "s").out == "s removed with 1 scope\n"
    assert "no other schedule either" in cli.fails("schedules", "remove", "s", code=3)
