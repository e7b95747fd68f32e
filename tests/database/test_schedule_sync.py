"""Sync and what people do: additive, from the change on, and an operator's word survives deploys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from support.schedule_leader import Leader

from pgworkers import App
from pgworkers.errors import NotFound
from pgworkers.schedule import definitions
from pgworkers.specs import ScheduleSpec

Db = psycopg.Connection[Any]
NIGHTLY = ScheduleSpec("nightly", "t", cron="0 3 * * *", tz="Europe/Berlin", args={"a": [1, {"b": None}]})


@pytest.fixture
def leader(dsn: str) -> Iterator[Leader]:
    made = Leader(dsn)
    yield made
    made.close()


def rows(db: Db) -> list[tuple[Any, ...]]:
    """Every row as it is stored, with the transaction that wrote it."""
    return db.execute("SELECT xmin::text, s.* FROM pgworkers.schedule s ORDER BY name, scope").fetchall()


def test_an_unchanged_definition_is_not_written(db: Db, leader: Leader) -> None:
    specs = [NIGHTLY, ScheduleSpec("often", "t", every=300.0, scope_kind="tenant", scopes={"x": {"k": 1}})]
    assert leader.sync(*specs) == ["nightly", "often"]
    before = _stored(db)
    assert leader.sync(*specs) == []
    assert _stored(db) == before


def _stored(db: Db) -> list[tuple[Any, ...]]:
    query = (
        "SELECT xmin::text, ctid::text, revision, name, scope FROM pgworkers.schedule ORDER BY name, scope"
    )
    return db.execute(query).fetchall()


def test_a_deploy_never_deletes_what_another_declared(db: Db, leader: Leader) -> None:
    leader.sync(NIGHTLY)
    leader.sync(ScheduleSpec("hourly", "t", cron="@hourly"))
    leader.sync()
    assert leader.execute(definitions.schedule_names()) == ["hourly", "nightly"]


def test_only_a_new_calendar_counts_from_the_change(db: Db, leader: Leader) -> None:
    leader.sync(NIGHTLY)
    db.execute("UPDATE pgworkers.schedule SET planned_until = now() - interval '1 day'")

    def waited() -> bool:
        row = db.execute(
            "SELECT planned_until < now() - interval '1 hour' FROM pgworkers.schedule"
        ).fetchone()
        assert row is not None
        return bool(row[0])

    assert leader.sync(msgspec.structs.replace(NIGHTLY, jitter=5.0, args={}, overlap="skip")) == ["nightly"]
    assert waited(), "the tick it missed is still owed"
    assert leader.sync(msgspec.structs.replace(NIGHTLY, tz="UTC")) == ["nightly"]
    assert not waited()


def test_a_pause_survives_deploys_and_what_passed_meanwhile_is_skipped(db: Db, leader: Leader) -> None:
    minutely = ScheduleSpec("m", "t", cron="* * * * *", missed="all")
    leader.sync(minutely)
    assert leader.execute(definitions.pause_schedule("m")) == [("m", "")]
    assert leader.execute(definitions.pause_schedule("m")) == []
    leader.sync(msgspec.structs.replace(minutely, args={"new": True}))
    db.execute("UPDATE pgworkers.schedule SET planned_until = now() - interval '1 hour'")
    assert leader.fire() == 0
    (view,) = leader.execute(definitions.list_schedules())
    assert (view.state, view.next_at) == ("paused", None)
    assert leader.execute(definitions.resume_schedule("m")) == [("m", "")]
    row = db.execute("SELECT now() - planned_until < interval '30 s' FROM pgworkers.schedule").fetchone()
    assert row == (True,)
    made = leader.fire()
    assert made <= 1, "at most the minute that has just begun"
    assert leader.execute(definitions.remove_schedule("m")) == [("m", "")]
    assert leader.execute(definitions.list_schedules()) == []


def test_paused_in_the_declaration_is_only_how_it_begins(leader: Leader) -> None:
    spec = msgspec.structs.replace(NIGHTLY, paused=True)
    leader.sync(spec)
    assert leader.execute(definitions.list_schedules())[0].is_paused
    leader.execute(definitions.resume_schedule("nightly"))
    leader.sync(msgspec.structs.replace(spec, args={}))
    assert not leader.execute(definitions.list_schedules())[0].is_paused


def test_scopes_follow_their_template(db: Db, dsn: str, leader: Leader) -> None:
    spec = ScheduleSpec(
        "s", "t", cron="0 3 * * *", scope_kind="tenant", args={"x": 1}, scopes={"a": {"y": 1}}
    )
    leader.sync(spec)
    app = App(dsn=dsn)
    try:
        assert app.add_scope("s", "b", {"y": 2})
        assert not app.add_scope("s", "b", {"y": 2})
        assert app.add_scope("s", "b", {"y": 3})
        with pytest.raises(NotFound, match="no scoped schedule 'nightly'"):
            app.add_scope("nightly", "b")
        seen = {view.scope: view for view in leader.execute(definitions.list_schedules())}
        assert {scope: view.state for scope, view in seen.items()} == {
            "": "template",
            "a": "active",
            "b": "active",
        }
        assert seen["b"].args == {"x": 1, "y": 3}
        leader.sync(msgspec.structs.replace(spec, cron="0 4 * * *", args={"x": 9}, scopes={}))
        seen = {view.scope: view for view in leader.execute(definitions.list_schedules())}
        assert {view.cron for view in seen.values()} == {"0 4 * * *"}
        assert (seen["a"].args, seen["b"].args) == ({"x": 9, "y": 1}, {"x": 9, "y": 3})
        assert app.remove_scope("s", "b")
        assert not app.remove_scope("s", "b")
    finally:
        app.close()


def test_a_schedule_that_is_no_longer_scoped_fires_once(db: Db, leader: Leader) -> None:
    spec = ScheduleSpec("s", "t", cron="* * * * *", scope_kind="tenant", scopes={"a": {}, "b": {}})
    leader.sync(spec)
    leader.sync(msgspec.structs.replace(spec, scope_kind="", scopes={}))
    db.execute("UPDATE pgworkers.schedule SET planned_until = now() - interval '5 minutes'")
    assert leader.fire() == 1
    assert db.execute("SELECT schedule, scope FROM pgworkers.tick").fetchall() == [("s", "")]


def test_the_schema_may_have_another_name(server: Any, dsn: str) -> None:
    from pgworkers.postgres import migrate
    from pgworkers.settings import Settings

    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate.up(conn, "other_jobs")
        leader = Leader(dsn, Settings(schema="other_jobs", statement_timeout=60.0))
        try:
            leader.sync(ScheduleSpec("m", "t", cron="* * * * *"))
            conn.execute("UPDATE \"other_jobs\".schedule SET planned_until = now() - interval '5 minutes'")
            assert leader.fire() == 1
            assert conn.execute('SELECT count(*) FROM "other_jobs".job').fetchone() == (1,)
            assert conn.execute("SELECT count(*) FROM pgworkers.tick").fetchone() == (0,)
        finally:
            leader.close()
