"""`@app.schedule`: what it accepts, and what it refuses where it is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from pgworkers import App, Ctx
from pgworkers.errors import UsageError
from pgworkers.specs import AppSpec, ScheduleSpec

NOW = datetime(2026, 3, 1, 12, 0, 30, 5, tzinfo=UTC)


@pytest.fixture
def app() -> App:
    made = App()
    made.queue("default")
    return made


def only(app: App) -> ScheduleSpec:
    """The one schedule, after its journey to the master."""
    (found,) = msgspec.json.decode(msgspec.json.encode(app.describe()), type=AppSpec).schedules
    return found


def test_the_one_in_the_readme(app: App) -> None:
    @app.schedule("0 3 * * *", tz="Europe/Berlin", overlap="skip", missed="latest", jitter="2m")
    @app.task
    def nightly(ctx: Ctx) -> None:
        pass

    assert nightly.name == "nightly"
    assert only(app) == ScheduleSpec(
        "nightly", "nightly", cron="0 3 * * *", tz="Europe/Berlin", overlap="skip", jitter=120.0
    )


def test_everything_it_takes(app: App) -> None:
    @app.schedule(
        every="5m",
        name="pull",
        args={"since": NOW},
        start=NOW,
        end=NOW + timedelta(days=9),
        missed="all",
        missed_window="2h",
        overlap="replace",
        reentrant=False,
        paused=True,
        queue="default",
        priority=3,
        expires="1m",
    )
    @app.task(deadline="1h", expires="5m")
    def fetch(since: datetime) -> None:
        pass

    assert only(app) == ScheduleSpec(
        "pull",
        "fetch",
        every=300.0,
        args={"since": "2026-03-01T12:00:30.000005Z"},
        start=NOW.replace(microsecond=0),
        end=NOW.replace(microsecond=0) + timedelta(days=9),
        missed="all",
        missed_window=7200.0,
        overlap="replace",
        reentrant=False,
        paused=True,
        queue="default",
        priority=3,
        deadline=3600.0,
        expires=60.0,
    )


def test_scopes(app: App) -> None:
    @app.schedule(
        "@hourly", scope="tenant", args={"deep": True}, scopes={"a": {"who": "a"}, "b": {"who": "b"}}
    )
    @app.schedule("@daily", name="daily", scope="tenant")
    @app.task
    def bill(who: str, deep: bool = False) -> None:
        pass

    daily, hourly = app.describe().schedules
    assert (daily.scope_kind, daily.scopes) == ("tenant", {})
    assert hourly.args == {"deep": True}
    assert hourly.scopes == {"a": {"deep": True, "who": "a"}, "b": {"deep": True, "who": "b"}}


@pytest.mark.parametrize(
    ("cron", "options", "why"),
    [
        (None, {}, "say when"),
        ("0 3 * * *", {"every": "5m"}, "not both"),
        ("0 0 31 2 *", {}, "never happens"),
        ("61 * * * *", {}, "not understood"),
        ("0 3 * * *", {"tz": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        (None, {"every": "5m", "tz": "Europe/Berlin"}, "has no time zone"),
        (None, {"every": "100ms"}, "at least 1s"),
        (None, {"every": "soon"}, "not a duration"),
        ("@daily", {"missed": "some"}, "latest, all, skip"),
        ("@daily", {"overlap": "maybe"}, "allow, skip, replace"),
        ("@daily", {"start": datetime(2026, 1, 1)}, "has no time zone"),
        ("@daily", {"start": NOW, "end": NOW}, "end is not after start"),
        ("@daily", {"start": NOW, "end": NOW + timedelta(hours=1)}, "no tick lies between"),
        ("@daily", {"args": {"x": "seven"}}, "argument x"),
        ("@daily", {"args": {"y": 1}}, "it takes"),
        ("@daily", {"args": [1]}, "must be a dict"),
        ("@daily", {"scopes": ["a"]}, "without scope="),
        ("@daily", {"scope": "tenant", "scopes": "abc"}, "must be a list"),
        ("@daily", {"scope": "tenant", "scopes": {"a": {"x": "no"}}}, "argument x"),
        ("@daily", {"name": " "}, "schedule name"),
        ("@daily", {"jitter": -1}, "out of range"),
        (7, {}, "not a cron expression"),
    ],
)
def test_refused(app: App, cron: Any, options: Any, why: str) -> None:
    @app.task
    def job(x: int = 0) -> None:
        pass

    with pytest.raises(UsageError, match=why):
        app.schedule(cron, **options)(job)
    assert app.describe().schedules == ()


def test_the_same_name_twice(app: App) -> None:
    @app.schedule("@daily")
    @app.task
    def job() -> None:
        pass

    with pytest.raises(UsageError, match="declared twice"):
        app.schedule("@hourly")(job)
    app.schedule("@hourly", name="job hourly")(job)
    assert [spec.name for spec in app.describe().schedules] == ["job", "job hourly"]


def test_only_a_task_of_this_app(app: App) -> None:
    with pytest.raises(UsageError, match="put it above"):
        app.schedule("@daily")(print)  # type: ignore[type-var]
    other = App()
    with pytest.raises(UsageError, match="not a task of this app"):
        app.schedule("@daily")(other.task(_plain))


def _plain() -> None:
    pass


def test_an_undeclared_queue_is_refused_when_the_app_is_described(app: App) -> None:
    @app.schedule("@daily", queue="reports")
    @app.task
    def job() -> None:
        pass

    with pytest.raises(UsageError, match="'reports' is not declared"):
        app.describe()


def test_arguments_of_a_type_that_comes_later(app: App) -> None:
    """The annotation cannot be resolved yet: the arguments are checked when the app is described."""
    app.schedule("@daily", args={"x": {"a": "seven"}})(app.task(_later))
    global Later

    class Later(msgspec.Struct):
        a: int

    try:
        with pytest.raises(UsageError, match="argument x"):
            app.describe()
    finally:
        del Later


def _later(x: Later) -> None:
    pass
