"""A box answers as Postgres does: the same calls of the client give the same answers, errors and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import pytest

from pgworkers import App, Ctx, PgworkersError
from pgworkers.handles import Batch, Job

app = App()
app.queue("default")
app.queue("api")


@app.task
def mail(to: str) -> None: ...


@app.task(
    queue="api", priority=7, retries=2, max_crashes=2, expires="1h", deadline="2h", timeout="1m", memory="1GB"
)
def render(report_id: int) -> None: ...


@pytest.fixture
def on_postgres(dsn: str) -> Iterator[None]:
    app.use_database(dsn)
    yield
    app.close()


def test_a_handler_in_a_box_can_use_the_database_that_the_test_named(dsn: str) -> None:
    own = App(dsn="host=/nowhere/at/all")
    own.queue("default")

    @own.task(retries=0)
    def count(ctx: Ctx) -> int:
        with ctx.connect() as conn:
            row = conn.execute("SELECT count(*) FROM pgworkers.job").fetchone()
            assert row is not None
            return int(row[0])

    @own.task(retries=0)
    async def acount(ctx: Ctx) -> int:
        conn = await ctx.aconnect(autocommit=True)
        found = await (await conn.execute("SELECT count(*) FROM pgworkers.job")).fetchone()
        assert found is not None
        return int(found[0])

    with own.client.database.temporarily(dsn), own.testing() as box:
        jobs = [count.enqueue(), acount.enqueue()]
        box.run()
        assert [job.result() for job in jobs] == [0, 0], "the jobs are in the box, not in the database"


#: What a box does not know, and times, which are compared as distances.
IGNORED = {
    "id",
    "enqueued_by",
    "lease",
    "created_at",
    "run_at",
    "finished_at",
    "started_at",
    "batch_id",
    "cancel_at",
}


def seen(job: Job[Any]) -> dict[str, Any]:
    view = job.refresh()
    shown = {name: value for name, value in asdict(view).items() if name not in IGNORED}
    if shown["meta"] is not None and "batch" in shown["meta"]:
        shown["meta"]["batch"] = "the batch"
    return shown | {
        "delay": _distance(view.created_at, view.run_at),
        "is_new": job.is_new,
        "in_batch": view.batch_id is not None,
        "is_finished": view.finished_at is not None,
        "is_cancelled": view.cancel_at is not None,
    }


def _distance(start: datetime, end: datetime | None) -> int | None:
    return None if end is None else round((end - start) / timedelta(seconds=10))


def unique_keys() -> Iterator[Any]:
    first = mail.using(unique="k", meta={"n": 1}).enqueue("a")
    again = mail.using(unique="k", meta={"n": 2}).enqueue("b")
    yield again.id == first.id, seen(again)
    replaced = mail.using(unique="k", on_conflict="replace", meta={"n": 3}).enqueue("c")
    yield replaced.id == first.id, seen(replaced)
    yield attempt(lambda: mail.using(unique="k", on_conflict="raise").enqueue("d"))
    yield seen(render.using(unique="k").enqueue(1))
    first.cancel()
    yield seen(mail.using(unique="k").enqueue("e")), seen(first)


def idempotency_keys() -> Iterator[Any]:
    first = mail.using(idempotency_key="k").enqueue("a")
    yield first.cancel(), mail.using(idempotency_key="k").enqueue("b").id == first.id
    yield seen(mail.using(idempotency_key="other", unique="u").enqueue("c"))
    both = mail.using(idempotency_key="third", unique="u").enqueue("d")
    yield both.is_new, mail.using(idempotency_key="third").enqueue("e").id == both.id


def options() -> Iterator[Any]:
    yield seen(render.enqueue(1))
    yield seen(render.using(delay="5m", priority=-3, queue="default", retries=0, meta={"a": [1]}).enqueue(2))
    yield seen(mail.using(expires="10m", deadline="20m", timeout="30s", memory="64MB").enqueue("a"))
    yield attempt(lambda: mail.using(delay=9e9).enqueue("a"))


def cancel_and_deadline() -> Iterator[Any]:
    job = mail.using(delay="1h").enqueue("a")
    yield job.extend("5m"), job.cancel("for a reason"), job.cancel(), job.extend("5m"), seen(job)
    yield attempt(lambda: app.job(10**9).cancel()), attempt(lambda: app.job(10**9).refresh())
    yield attempt(lambda: app.get_batch(10**9).counts()), attempt(lambda: app.get_batch(10**9).cancel())
    yield attempt(lambda: app.add_scope("nothing", "tenant"))


def dependencies() -> Iterator[Any]:
    parent = mail.enqueue("a")
    waiting = mail.using(after=[parent, parent]).enqueue("b")
    yield seen(waiting), attempt(lambda: mail.using(after=[10**9]).enqueue("c"))
    parent.cancel()
    for on_failed in ("cancel", "run", "wait"):
        yield seen(mail.using(after=[parent], on_failed=on_failed).enqueue(on_failed))


def bulk() -> Iterator[Any]:
    count = app.enqueue_many(
        [
            mail.prepare("a\tb\\c\nd"),
            render.prepare(1),
            render.using(delay="5m", meta={"x": "y\tz"}, concurrency_key="c").prepare(2),
            mail.using(expires="1h", priority=3).prepare("b"),
        ]
    )
    first = mail.enqueue("last").id - count
    yield count, [seen(app.job(first + n)) for n in range(count)]
    yield attempt(lambda: app.enqueue_many([mail.prepare("a"), mail.using(unique="k").prepare("b")]))


def batches() -> Iterator[Any]:
    batch = app.batch([mail.prepare("a"), mail.prepare("b")], then=render.prepare(1), on_failed="cancel")
    assert batch.then is not None
    yield asdict(batch.counts()), seen(batch.then)
    yield batch.cancel(), asdict(batch.counts()), batch.then.state
    empty = app.batch([], then=mail.prepare("then"))
    assert empty.then is not None
    yield asdict(empty.counts()), seen(empty.then), asdict(empty.wait(timeout=5))
    yield attempt(lambda: app.batch([mail.prepare("a")], then=mail.using(delay="1m").prepare("then")))


def attempt(call: Callable[[], Job[Any] | Batch | Any]) -> str:
    """The type and the text of an error, without numbers of jobs."""
    with pytest.raises(PgworkersError) as raised:
        call()
    text = "".join("#" if character.isdigit() else character for character in str(raised.value))
    return f"{type(raised.value).__name__}: {text}"


@pytest.mark.usefixtures("on_postgres")
@pytest.mark.parametrize(
    "scenario", [unique_keys, idempotency_keys, options, cancel_and_deadline, dependencies, bulk, batches]
)
def test_a_box_answers_as_postgres_does(scenario: Callable[[], Iterator[Any]]) -> None:
    on_postgres = list(scenario())
    with app.testing():
        in_box = list(scenario())
    assert in_box == on_postgres
