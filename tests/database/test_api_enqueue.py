"""Enqueue from Python: what lands in the table, and that a refused enqueue leaves nothing there."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pgworkers import App, ArgumentError, Ctx, DuplicateJob, SchemaOutOfDate, UsageError
from pgworkers.app import PreparedJob

Db = psycopg.Connection[Any]


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    made = App(dsn=dsn)
    made.queue("default")
    made.queue("other")

    @made.task(priority=3, retries=4, expires="1h", deadline="2h")
    def render(ctx: Ctx, report_id: int, *, fmt: str = "pdf", when: datetime | None = None) -> dict[str, str]:
        return {}

    yield made
    made.close()


def render(app: App) -> Any:
    return app.tasks["render"]


def count(db: Db) -> int:
    row = db.execute("SELECT count(*) FROM pgworkers.job").fetchone()
    assert row is not None
    return int(row[0])


def row(db: Db, job_id: int) -> dict[str, Any]:
    found = (
        db.cursor(row_factory=dict_row)
        .execute("SELECT * FROM pgworkers.job WHERE id = %s", [job_id])
        .fetchone()
    )
    assert found is not None
    return found


def test_an_enqueued_job_is_ready_with_what_the_task_says(app: App, db: Db) -> None:
    job = render(app).enqueue(7, fmt="png")
    found = row(db, job.id)
    assert (found["state"], found["queue"], found["task"]) == ("ready", "default", "render")
    assert found["args"] == {"report_id": 7, "fmt": "png"}
    assert (found["priority"], found["max_attempts"], found["max_crashes"]) == (3, 5, 3)
    assert found["expires_at"] - found["run_at"] == timedelta(hours=1)
    assert found["deadline_at"] - found["run_at"] == timedelta(hours=2)
    assert (job.is_new, job.state, job.progress, job.error) == (True, "ready", None, None)


@pytest.mark.parametrize("value", [1e16, 1e25, float(2**62), -1.7e308])
def test_a_large_float_is_still_that_float_after_jsonb(app: App, db: Db, value: float) -> None:
    @app.task
    def take(value: Any) -> Any:
        return value

    job = take.enqueue([value])
    (text,) = db.execute("SELECT args::text FROM pgworkers.job WHERE id = %s", [job.id]).fetchone() or ("",)
    (found,) = take.run_handler(None, text.encode())
    assert (type(found), found) == (float, value)
    (result,) = db.execute(
        "SELECT %s::jsonb::text", [take.encode_result(value, 999).decode()]
    ).fetchone() or ("",)
    assert (type(take.decode_result(result.encode())), take.decode_result(result.encode())) == (float, value)


def test_the_concurrency_keys_of_schedules_are_refused(app: App, db: Db) -> None:
    with pytest.raises(UsageError, match="begins with schedule:"):
        render(app).using(concurrency_key="schedule:nightly/")
    assert db.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (0,)


def test_using_changes_one_enqueue(app: App, db: Db) -> None:
    when = datetime(2099, 1, 1, tzinfo=UTC)
    job = render(app).using(
        at=when, priority=-5, queue="other", expires="1m", timeout="30s", memory="64MB", retries=0,
        meta={"why": "nightly"}, concurrency_key="k", unique="u",
    ).enqueue(1, when=when)  # fmt: skip
    found = row(db, job.id)
    assert (found["state"], found["run_at"], found["queue"], found["priority"]) == (
        "scheduled",
        when,
        "other",
        -5,
    )
    assert (found["timeout"], found["memory"], found["max_attempts"]) == (timedelta(seconds=30), 64 << 20, 1)
    assert (found["meta"], found["concurrency_key"], found["unique_key"]) == ({"why": "nightly"}, "k", "u")
    assert found["args"]["when"] == "2099-01-01T00:00:00Z"
    delayed = row(db, render(app).using(delay="5m").enqueue(1).id)
    assert delayed["state"] == "scheduled"
    assert delayed["run_at"] - delayed["created_at"] == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("7",), {}),
        ((), {}),
        ((1, 2), {}),
        ((1,), {"format": "x"}),
        ((1,), {"fmt": "a\0b"}),
        ((1,), {"fmt": "\ud800"}),
        ((1,), {"fmt": "x" * (2 << 20)}),
        ((2**70,), {}),
        ((math.nan,), {}),
    ],
)
def test_wrong_arguments_insert_nothing(
    app: App, db: Db, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentError, match="nothing was enqueued"):
        render(app).enqueue(*args, **kwargs)
    with pytest.raises(ArgumentError, match="nothing was enqueued"):
        asyncio.run(render(app).aenqueue(*args, **kwargs))
    with pytest.raises(ArgumentError, match="nothing was enqueued"):
        app.enqueue_many(render(app).prepare(*args, **kwargs) for _ in range(1))
    assert count(db) == 0


def test_a_payload_at_the_limit_fits(app: App, db: Db) -> None:
    room = (1 << 20) - len('{"report_id":1,"fmt":""}')
    job = render(app).enqueue(1, fmt="x" * room)
    assert len(row(db, job.id)["args"]["fmt"]) == room
    with pytest.raises(ArgumentError, match="1,048,577 bytes as JSON, more than 1MB"):
        render(app).enqueue(1, fmt="x" * (room + 1))


def test_unique_keys_return_replace_or_raise(app: App, db: Db) -> None:
    task = render(app)
    first = task.using(unique="r").enqueue(1)
    again = task.using(unique="r").enqueue(2)
    assert (again.id, again.is_new) == (first.id, False)
    assert row(db, first.id)["args"] == {"report_id": 1}
    replaced = task.using(unique="r", on_conflict="replace").enqueue(3)
    assert (replaced.id, replaced.is_new) == (first.id, False)
    assert row(db, first.id)["args"] == {"report_id": 3}
    with pytest.raises(DuplicateJob) as caught:
        task.using(unique="r", on_conflict="raise").enqueue(4)
    assert (caught.value.job_id, caught.value.unique) == (first.id, "r")
    assert task.using(unique="s", on_conflict="raise").enqueue(5).is_new
    assert count(db) == 2


def test_an_idempotency_key_returns_the_first_job_after_its_end(app: App, db: Db, dsn: str) -> None:
    once = render(app).using(idempotency_key="mail 81", idempotency_window="2h")
    first = once.enqueue(1)
    first.cancel()
    again = once.enqueue(2)
    assert (first.is_new, again.is_new) == (True, False)
    assert (again.id, again.state) == (first.id, "cancelled")

    async def main() -> None:
        assert (await once.aenqueue(3)).id == first.id
        await app.aclose()

    asyncio.run(main())
    with psycopg.connect(dsn) as conn:
        assert render(app).using(conn=conn, idempotency_key="mail 81").enqueue(4).id == first.id
    assert count(db) == 0


def test_the_users_transaction_decides(app: App, db: Db, dsn: str) -> None:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:  # not autocommit, and rows are not tuples
        job = render(app).using(conn=conn).enqueue(1)
        assert count(db) == 0
        conn.rollback()
        assert count(db) == 0
        with conn.transaction():
            job = render(app).using(conn=conn).enqueue(2)
            assert app.enqueue_many([render(app).prepare(3)], conn=conn) == 1
            assert count(db) == 0
        assert count(db) == 2
    assert row(db, job.id)["args"] == {"report_id": 2}


def test_a_refused_duplicate_does_not_spoil_the_users_transaction(app: App, db: Db, dsn: str) -> None:
    task = render(app)
    held = task.using(unique="r").enqueue(1)
    with psycopg.connect(dsn) as conn, conn.transaction():
        task.using(conn=conn).enqueue(2)
        with pytest.raises(DuplicateJob):
            task.using(conn=conn, unique="r", on_conflict="raise").enqueue(3)
        task.using(conn=conn).enqueue(4)
    assert held.is_new
    assert count(db) == 3


def test_the_users_async_transaction_decides(app: App, db: Db, dsn: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            async with conn.transaction():
                await render(app).using(conn=conn).aenqueue(1)
                assert await app.aenqueue_many([render(app).prepare(2)], conn=conn) == 1
                once = render(app).using(conn=conn, unique="u", on_conflict="raise")
                await once.aenqueue(3)
                with pytest.raises(DuplicateJob):
                    await once.aenqueue(3)
                assert count(db) == 0
            assert count(db) == 3

    asyncio.run(main())


def test_the_wrong_kind_of_connection_is_refused(app: App, db: Db, dsn: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            with pytest.raises(
                UsageError,
                match=r"psycopg.AsyncConnection, which works in an event loop; nothing was enqueued; use aenqueue",
            ):
                render(app).using(conn=conn).enqueue(1)
        with pytest.raises(UsageError, match=r"psycopg.Connection, which blocks; nothing was enqueued"):
            await render(app).using(conn=db).aenqueue(1)

    asyncio.run(main())
    with pytest.raises(UsageError, match=r"conn is a builtins.object"):
        render(app).using(conn=object()).enqueue(1)
    assert count(db) == 0


def test_async_enqueue_and_result_of_many_loops(app: App, db: Db) -> None:
    async def main(n: int) -> int:
        jobs = await asyncio.gather(*(render(app).aenqueue(n * 10 + i) for i in range(5)))
        return len({job.id for job in jobs})

    assert [asyncio.run(main(n)) for n in range(3)] == [5, 5, 5]
    assert count(db) == 15


def test_many_by_copy_with_progress(app: App, db: Db) -> None:
    said: list[int] = []

    def prepared() -> Iterator[PreparedJob[Any]]:
        for i in range(12_000):
            yield render(app).prepare(i)
        yield render(app).using(delay="1h", priority=9, meta={"last": True}).prepare(-1)

    assert app.enqueue_many(prepared(), progress=said.append) == 12_001
    assert said[-1] == 12_001
    assert said == sorted(said)
    assert len(said) > 1
    assert count(db) == 12_001
    last = db.execute(
        "SELECT state, priority, max_attempts, meta, args FROM pgworkers.job WHERE priority = 9"
    ).fetchone()
    assert last == ("scheduled", 9, 5, {"last": True}, {"report_id": -1})


def test_many_is_all_or_nothing_and_its_generator_may_enqueue(app: App, db: Db) -> None:
    def failing() -> Iterator[PreparedJob[Any]]:
        for i in range(6000):
            yield render(app).prepare(i)
        render(app).enqueue(0)  # on the shared connection, while the COPY is under way on its own
        yield render(app).prepare("wrong")

    with pytest.raises(ArgumentError):
        app.enqueue_many(failing())
    assert count(db) == 1
    with pytest.raises(UsageError, match="an idempotency key cannot be enqueued in bulk"):
        app.enqueue_many([render(app).using(idempotency_key="k").prepare(1)])
    with pytest.raises(UsageError, match="unique key cannot be enqueued in bulk"):
        app.enqueue_many([render(app).using(unique="u").prepare(1)])
    assert app.enqueue_many([]) == 0
    for given in (7, "render", render(app)):
        with pytest.raises(UsageError, match=r"is not a prepared job; give task\.prepare\(\.\.\.\)"):
            app.enqueue_many([given])  # type: ignore[list-item]
    assert count(db) == 1


def test_many_async(app: App, db: Db) -> None:
    async def main() -> int:
        return await app.aenqueue_many(render(app).prepare(i) for i in range(100))

    assert asyncio.run(main()) == 100
    assert count(db) == 100


def test_missing_tables_say_what_to_run(empty_dsn: str) -> None:
    app = App(dsn=empty_dsn)
    app.queue("default")

    @app.task
    def job() -> None: ...

    try:
        for attempt in (
            job.enqueue,
            lambda: asyncio.run(job.aenqueue()),
            lambda: app.enqueue_many([job.prepare()]),
        ):
            with pytest.raises(SchemaOutOfDate, match="migrate up"):
                attempt()
    finally:
        app.close()


def test_another_schema(dsn: str, db: Db) -> None:
    from pgworkers.postgres import migrate

    migrate.up(db, "elsewhere")
    app = App(dsn=dsn, schema="elsewhere")
    app.queue("default")

    @app.task
    def job() -> None: ...

    job.enqueue()
    assert app.enqueue_many([job.prepare()]) == 1
    app.close()
    assert count(db) == 0
    assert db.execute("SELECT count(*) FROM elsewhere.job").fetchone() == (2,)
