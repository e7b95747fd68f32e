"""Any text in any name or payload is refused with our own error, or it is stored and read back unchanged.

Nothing that a caller sends may break a statement, another row or a reader; nothing that a handler leaves may keep its job
from ending. Hypothesis draws the texts, with NUL, lone surrogates, controls, quotes and format signs among
them; a few in the suite, TEXT_EXAMPLES=1000 for more.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from support.database_host import DatabaseHost

from pgworkers import App, ArgumentError, UsageError
from pgworkers.errors import PgworkersError
from pgworkers.job import claim, finish, hosts, queries, sanitize
from pgworkers.job.finish import JobFinish, JobRetry, ProgressUpdate
from pgworkers.job.model import JobState, Verdict
from pgworkers.schedule.definitions import sync_schedules

REFUSED = (UsageError, ArgumentError)
HOW = settings(
    max_examples=int(os.environ.get("TEXT_EXAMPLES", "15")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_LETTERS = st.one_of(
    st.characters(), st.sampled_from("\0\ud800\udfff\r\n\t\x1b\x7f\x85\u2028\u202e\ufeff'\"\\%${};")
)
TEXT = st.one_of(
    st.text(_LETTERS, max_size=30),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20),
    st.integers(180, 1200).map(lambda size: "ä" * size),
)
#: What a handler may leave where JSON is expected: JSON of any text, or the text itself.
LEFT = st.one_of(
    TEXT, TEXT.map(json.dumps), TEXT.map(lambda text: json.dumps({text: [text]}, ensure_ascii=False))
)


@pytest.fixture
def app(emptied: str) -> Iterator[App]:
    made = App(dsn=emptied)
    made.queue("default")

    @made.task
    def take(value: Any) -> Any:
        return value

    yield made
    made.close()


def enqueue_named(app: App, name: str) -> None:
    """By a task of that name, as another app would declare it."""
    foreign = App(dsn=app.client.database.dsn())
    foreign.queue("default")
    try:
        foreign.task(name=name)(lambda: None).enqueue()
    finally:
        foreign.close()


def only_row(db: psycopg.Connection[Any]) -> dict[str, Any] | None:
    cursor = db.cursor(row_factory=dict_row).execute("SELECT * FROM pgworkers.job")
    rows = cursor.fetchall()
    db.execute("DELETE FROM pgworkers.job")
    assert len(rows) <= 1
    return rows[0] if rows else None


@HOW
@given(value=TEXT)
def test_what_is_enqueued_is_refused_or_kept_as_it_is(app: App, host: DatabaseHost, value: str) -> None:
    task = app.tasks["take"]
    ways: dict[str, Any] = {
        "args": lambda: task.enqueue(value),
        "key of args": lambda: task.enqueue({value: 1}),
        "unique_key": lambda: task.using(unique=value).enqueue(1),
        "concurrency_key": lambda: task.using(concurrency_key=value).enqueue(1),
        "queue": lambda: task.using(queue=value).enqueue(1),
        "meta": lambda: task.using(meta={"why": value}).enqueue(1),
        "key of meta": lambda: task.using(meta={value: "why"}).enqueue(1),
        "copied args": lambda: app.enqueue_many([task.prepare(value)]),
        "copied queue": lambda: app.enqueue_many([task.using(queue=value).prepare(1)]),
        "task": lambda: enqueue_named(app, value),
    }
    for way, enqueue in ways.items():
        try:
            enqueue()
        except REFUSED:
            assert only_row(host.conn) is None, way
            continue
        row = only_row(host.conn)
        assert row is not None, way
        expected: dict[str, Any] = {
            "args": {"value": value},
            "key of args": {"value": {value: 1}},
            "meta": {"why": value},
            "key of meta": {value: "why"},
        }
        column = way.removeprefix("key of ").removeprefix("copied ")
        assert row[column] == expected.get(way.removeprefix("copied "), value), way


@HOW
@given(name=TEXT)
def test_names_of_rates_schedules_and_scopes_are_refused_or_kept_as_they_are(
    app: App, host: DatabaseHost, name: str
) -> None:
    task = app.tasks["take"]

    def schedule(**said: Any) -> None:
        app.schedules.clear()
        app.schedule("0 3 * * *", args={"value": 1}, **said)(task)
        host.execute(sync_schedules(app.describe().schedules))

    def scope() -> None:
        schedule(name="nightly", scope="tenant", scopes=["first"])
        app.add_scope("nightly", name)

    ways: dict[str, tuple[Any, str]] = {
        "rate": (lambda: app.rate(name, 1000).acquire(), "SELECT scope FROM pgworkers.rate_bucket"),
        "schedule": (lambda: schedule(name=name), "SELECT name FROM pgworkers.schedule"),
        "scope kind": (
            lambda: schedule(scope=name, scopes=["a"]),
            "SELECT DISTINCT scope_kind FROM pgworkers.schedule",
        ),
        "scope": (
            lambda: schedule(scope="tenant", scopes=[name]),
            "SELECT scope FROM pgworkers.schedule WHERE scope <> ''",
        ),
        "added scope": (scope, "SELECT scope FROM pgworkers.schedule WHERE scope NOT IN ('', 'first')"),
    }
    for way, (make, look) in ways.items():
        try:
            make()
        except REFUSED:
            kept = []
        else:
            kept = [(name,)]
        assert host.conn.execute(look).fetchall() == kept, way
        host.conn.execute("TRUNCATE pgworkers.rate_bucket, pgworkers.schedule")


@HOW
@given(error=TEXT, left=LEFT, more=LEFT)
def test_whatever_a_handler_leaves_its_job_and_its_neighbour_end(
    host: DatabaseHost, error: str, left: str, more: str
) -> None:
    host.enqueue(), host.enqueue()
    one, two = host.claim(2)
    texts = {"error": error, "traceback": error, "stack": left, "exit_status": error, "output": more}
    texts |= {"progress": left, "checkpoint": more, "rungs": left, "worker": error, "version": error}
    again = JobRetry(**one.fence._asdict(), verdict=Verdict.ERROR, delay_seconds=0.0, **texts)
    assert host.execute(finish.retry(host.id, [again])) == {}
    [back] = host.claim(1)
    assert host.execute(finish.save_progress(host.id, [ProgressUpdate(*back.fence, left, more)])) == (1, [])
    ends = [
        JobFinish(
            **back.fence._asdict(),
            state=JobState.DEAD,
            verdict=Verdict.ERROR,
            result=more,
            **texts,
        ),
        JobFinish(
            **two.fence._asdict(),
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
            result=left,
        ),
    ]
    assert host.execute(finish.finish(host.id, ends)) == {}
    host.job_view(one.id)
    lines = host.conn.execute(
        "SELECT unnest(errors) FROM pgworkers.history WHERE id = %s", [one.id]
    ).fetchall()
    assert len(lines) == 2
    assert not any(len(line.splitlines()) > 1 for (line,) in lines), "one line of an error is one line"
    for attempt in host.execute(queries.job_attempts(one.id)):
        assert attempt.error == sanitize.clean_text(error, 1 << 18)
        assert attempt.output == sanitize.clean_text(more, 1 << 18)
    host.job_view(two.id)


@HOW
@given(text=TEXT)
def test_what_a_host_says_about_itself_is_stored_in_any_case(host: DatabaseHost, text: str) -> None:
    made = str(uuid.uuid4())
    host.execute(hosts.register_host(made, text, 1, text, text, text, ["a"], [text], 30.0))
    assert host.execute(
        hosts.renew_lease(made, [], text, json.dumps([{"task": text, "queue": text, "job": 1}]))
    ).is_known
    assert any(str(one.id) == made for one in host.execute(queries.list_hosts()))
    host.execute(queries.list_workers())
    host.execute(hosts.remove_host(made))


@HOW
@given(text=TEXT)
def test_a_search_for_any_text_finds_nothing_or_is_refused(app: App, host: DatabaseHost, text: str) -> None:
    for ask in (
        lambda: queries.find_jobs(host.execute, queries.JobFilter(queues=[text])).jobs,
        lambda: queries.count_jobs(host.execute, queries.JobFilter(tasks=[text])).jobs,
        lambda: host.execute(claim.claim(host.id, [claim.QueueCapacity(text, 1)], [text])),
    ):
        try:
            assert not ask()
        except (PgworkersError, psycopg.DataError, UnicodeEncodeError):
            pass
        assert host.conn.execute("SELECT 1").fetchone() == (1,), "the session lives"
