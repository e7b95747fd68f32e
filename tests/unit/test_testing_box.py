"""`app.testing()`: jobs are captured in memory and run in this process, with the outcomes that a host would write."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pgworkers import (
    App,
    ArgumentError,
    Ctx,
    Discard,
    DuplicateJob,
    JobFailed,
    NotFound,
    Retry,
    Snooze,
    Throttled,
    UsageError,
)
from pgworkers.job.model import NewJob
from pgworkers.testing import Box, transport

MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)

app = App(dsn="host=/nowhere/at/all")  # a test that opens a connection fails
app.queue("default")
app.queue("api")
ran: list[Any] = []


@app.task
def mail(to: str, *, subject: str = "hello") -> str:
    ran.append(to)
    return f"{subject} {to}"


@app.task(queue="api", retries=2, priority=5)
def flaky(ctx: Ctx, fails: int) -> int:
    ran.append(ctx.attempt)
    if ctx.attempt <= fails:
        raise ValueError(f"attempt {ctx.attempt}")
    return ctx.attempt


@app.task
async def amail(to: str) -> str:
    await asyncio.sleep(0)
    ran.append(to)
    return to


@app.task
def dated(at: datetime, where: Path) -> datetime:
    ran.append((at, where))
    return at


@app.task(retries=3)
def steer(ctx: Ctx, how: str) -> str:
    ran.append(how)
    ctx.checkpoint["attempts"] = ctx.checkpoint.get("attempts", 0) + 1
    ctx.progress(1, 2)
    if ctx.checkpoint["attempts"] == 1:
        match how:
            case "snooze":
                raise Snooze("10m")
            case "retry":
                raise Retry(after="1h")
            case "throttle":
                raise Throttled(after="5m")
            case "discard":
                raise Discard("not needed")
    return how


@app.task
def parent(ctx: Ctx) -> None:
    ctx.enqueue(mail.prepare("child"), mail.using(delay="1h").prepare("later"))


@app.task(retries=0)
def broken() -> None:
    ran.append("broken")
    raise RuntimeError("always")


@pytest.fixture
def box() -> Iterator[Box]:
    ran.clear()
    with app.testing(now=MONDAY) as opened:
        yield opened


def test_a_captured_job_can_be_asserted_and_run(box: Box) -> None:
    job = mail.enqueue("ada")
    assert (job.id, job.state, job.is_new) == (1, "ready", True)
    assert [one.call_text() for one in box.enqueued] == ["mail(to='ada')"]
    box.assert_enqueued(mail, to="ada")
    box.assert_enqueued(mail, "ada")
    assert box.run() == box.enqueued
    assert (job.result(), job.state, ran) == ("hello ada", "succeeded", ["ada"])


def test_handles_still_answer_after_the_box_is_closed() -> None:
    with app.testing() as box:
        job = mail.enqueue("ada")
        box.run()
    assert job.result() == "hello ada"
    assert app.client.substitute is None
    with pytest.raises(UsageError, match="this box is closed"):
        box.run()


def test_nothing_leaves_the_process(box: Box) -> None:
    """The app's address cannot be reached: each operation of a client is answered by the box."""
    mail.enqueue("a")
    app.enqueue_many(mail.prepare(str(n)) for n in range(3))
    app.batch([mail.prepare("b")], mail.prepare("then"))
    mail.using(conn=object()).enqueue("in a transaction")  # type: ignore[typeddict-item]
    with app.rate("service", rate=1, per="1h") as rate:
        rate.acquire()
        rate.acquire()
        assert rate.try_acquire()
    assert len(box.enqueued) == 7
    box.run()
    assert len(ran) == 7


def test_arguments_are_encoded_and_decoded_as_for_a_worker(box: Box) -> None:
    dated.enqueue(MONDAY, Path("/tmp/x"))
    assert box.enqueued[0].args == {"at": "2026-01-05T12:00:00Z", "where": "/tmp/x"}
    box.assert_enqueued(dated, MONDAY, where=Path("/tmp/x"))
    box.run()
    assert ran == [(MONDAY, Path("/tmp/x"))]
    assert box.job(1).result() == MONDAY
    with pytest.raises(ArgumentError, match="nothing was enqueued"):
        mail.enqueue(7)  # type: ignore[arg-type]
    assert len(box.enqueued) == 1


def test_stored_arguments_that_do_not_fit_end_the_job(box: Box) -> None:
    """As after a deploy that changed the signature, or an enqueue by SQL."""
    box.store.enqueue(NewJob(task="mail", args_json='{"who": "ada"}', queue="default"))
    with pytest.raises(JobFailed, match="the stored arguments do not fit"):
        box.run()
    assert (box.enqueued[0].state, ran) == ("dead", [])


def test_a_result_that_cannot_be_stored_ends_the_job(box: Box) -> None:
    own = App()
    own.queue("default")

    @own.task
    def nan() -> float:
        return float("nan")

    with own.testing() as other:
        nan.enqueue()
        with pytest.raises(JobFailed, match="nan"):
            other.run()
        assert (other.enqueued[0].verdict, other.enqueued[0].attempt) == ("bad_result", 1)
    box.assert_nothing_enqueued()


def test_retries_follow_the_backoff_of_the_task(box: Box) -> None:
    job = flaky.enqueue(2)
    box.run()
    assert (job.state, ran) == ("scheduled", [1])
    assert box.enqueued[0].run_at == MONDAY + timedelta(seconds=2)
    box.clock.move("2s")
    box.run()
    assert (box.enqueued[0].run_at, ran) == (MONDAY + timedelta(seconds=6), [1, 2])
    box.run_all()
    assert (job.result(), ran, box.clock.now) == (3, [1, 2, 3], MONDAY + timedelta(seconds=6))


def test_a_job_without_attempts_left_is_dead_and_raises_the_error_of_its_handler(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    job = flaky.enqueue(3)
    mail.enqueue("after it")
    with pytest.raises(JobFailed, match="#1 is dead: ValueError: attempt 3") as raised:
        box.run_all()
    assert isinstance(raised.value.__cause__, ValueError)
    assert (job.state, job.error, ran) == ("dead", "ValueError: attempt 3", [1, "after it", 2, 3])
    assert box.enqueued[0].errors == [f"ValueError: attempt {n}" for n in (1, 2, 3)]
    assert "#1 flaky(fails=3) attempt 1: ValueError: attempt 1; it runs again in 2s" in caplog.messages
    with pytest.raises(JobFailed):
        job.result()


def test_errors_can_be_looked_at_instead(box: Box) -> None:
    broken.enqueue()
    assert [one.verdict for one in box.run(raise_errors=False)] == ["error"]


@pytest.mark.parametrize(
    ("how", "minutes", "attempts"), [("snooze", 10, 1), ("retry", 60, 2), ("throttle", 5, 1)]
)
def test_control_exceptions(box: Box, how: str, minutes: int, attempts: int) -> None:
    job = steer.enqueue(how)
    box.run()
    assert job.state in ("scheduled", "ready")
    box.run_all()
    assert job.result() == how
    assert box.clock.now == MONDAY + timedelta(minutes=minutes)
    assert (box.enqueued[0].attempt, box.enqueued[0].checkpoint) == (attempts, {"attempts": 2})
    assert job.progress == {"done": 1, "total": 2}


def test_a_throttle_pauses_the_whole_queue(box: Box) -> None:
    steer.using(priority=1).enqueue("throttle")
    mail.enqueue("waits")
    flaky.enqueue(0)
    box.run()
    assert ran == [1, "throttle"]
    box.run_all()
    assert ran == [1, "throttle", "throttle", "waits"]


def test_a_discarded_job_does_not_fail_the_test(box: Box) -> None:
    job = steer.enqueue("discard")
    box.run_all()
    assert (job.state, box.enqueued[0].verdict, ran) == ("dead", "discarded", ["discard"])


def test_priority_and_number_decide_the_order(box: Box) -> None:
    mail.enqueue("second")
    mail.enqueue("third")
    mail.using(priority=9).enqueue("first")
    box.run()
    assert ran == ["first", "second", "third"]


def test_children_exist_only_if_their_parent_succeeds(box: Box) -> None:
    parent.enqueue()
    box.run()
    box.assert_enqueued(mail, "child", state="succeeded")
    box.assert_enqueued(mail.using(delay="1h"), "later", state="scheduled")
    assert ran == ["child"]

    own = App()
    own.queue("default")

    @own.task(retries=0)
    def fails(ctx: Ctx) -> None:
        ctx.enqueue(mail.prepare("never"))
        raise ValueError

    with own.testing() as other:
        fails.enqueue()
        other.run(raise_errors=False)
        assert len(other.enqueued) == 1


def test_a_delay_waits_for_the_clock(box: Box) -> None:
    mail.using(delay="5m").enqueue("later")
    mail.using(at=MONDAY + timedelta(hours=1)).enqueue("much later")
    assert box.run() == []
    box.clock.move("5m")
    box.run()
    assert ran == ["later"]
    box.clock.move_to(MONDAY + timedelta(hours=1))
    box.run()
    assert ran == ["later", "much later"]
    with pytest.raises(UsageError, match="only moves forward"):
        box.clock.move_to(MONDAY)


def test_expired_jobs_do_not_run(box: Box) -> None:
    job = mail.using(expires="1m").enqueue("late")
    box.clock.move("2m")
    box.run()
    assert (job.state, job.error, ran) == ("dead", "expired: it did not start in time", [])


def test_deadline_and_timeout_follow_the_clock(box: Box) -> None:
    own = App()
    own.queue("default")
    seen: list[Any] = []

    @own.task(timeout="1m", retries=1)
    def slow(ctx: Ctx, minutes: int) -> None:
        seen.append(ctx.deadline)
        other.clock.move(f"{minutes}m")
        ctx.check_cancelled()

    with own.testing(now=MONDAY) as other:
        job = slow.using(deadline="10m").enqueue(5)
        with pytest.raises(JobFailed, match="stopped at its deadline"):
            other.run_all()
    assert (job.state, seen) == ("dead", [60, 60])
    assert [one.verdict for one in other.enqueued] == ["timeout"]
    box.assert_nothing_enqueued()


def test_unique_keys(box: Box) -> None:
    first = mail.using(unique="k").enqueue("a")
    again = mail.using(unique="k").enqueue("b")
    assert (again.id, again.is_new) == (first.id, False)
    replaced = mail.using(unique="k", on_conflict="replace").enqueue("c")
    assert (replaced.id, box.enqueued[0].args) == (first.id, {"to": "c"})
    with pytest.raises(DuplicateJob) as raised:
        mail.using(unique="k", on_conflict="raise").enqueue("d")
    assert (raised.value.job_id, raised.value.unique) == (first.id, "k")
    steer.using(unique="k").enqueue("another task")
    box.run()
    assert mail.using(unique="k").enqueue("e").is_new
    box.assert_enqueued(mail, unique="k", count=2)


def test_idempotency_keys_last_for_their_window(box: Box) -> None:
    pay = mail.using(idempotency_key="order-7", idempotency_window="1h")
    first = pay.enqueue("a")
    box.run()
    assert pay.enqueue("a").id == first.id
    box.clock.move("61m")
    assert pay.enqueue("a").is_new


def test_jobs_after_other_jobs(box: Box) -> None:
    one, two = mail.enqueue("one"), mail.using(delay="1h").enqueue("two")
    last = mail.using(after=[one, two]).enqueue("last")
    box.run()
    assert (last.state, ran) == ("scheduled", ["one"])
    box.run_all()
    assert ran == ["one", "two", "last"]
    with pytest.raises(NotFound, match="#99"):
        mail.using(after=[99]).enqueue("nothing")


@pytest.mark.parametrize(
    ("on_failed", "state"), [("cancel", "cancelled"), ("run", "succeeded"), ("wait", "scheduled")]
)
def test_jobs_after_a_failed_job(box: Box, on_failed: Any, state: str) -> None:
    first = broken.enqueue()
    follower = mail.using(after=[first], on_failed=on_failed).enqueue("x")
    box.run_all(raise_errors=False)
    late = mail.using(after=[first], on_failed=on_failed).enqueue("y")
    box.run_all()
    assert (follower.state, late.state) == (state, state)


def test_a_batch_runs_the_job_after_it_once(box: Box) -> None:
    batch = app.batch((mail.prepare(str(n)) for n in range(3)), then=mail.prepare("then"))
    assert (batch.counts().live, batch.then and batch.then.state) == (3, "scheduled")
    with pytest.raises(UsageError, match="nothing in a box ends this wait"):
        batch.wait()
    box.run()
    assert ran == ["0", "1", "2", "then"]
    assert batch.wait().succeeded == 3
    box.assert_enqueued(mail, "then", meta={"batch": batch.id})


def test_a_failed_batch_cancels_what_comes_after_it(box: Box) -> None:
    batch = app.batch([broken.prepare(), mail.prepare("a")], then=mail.prepare("then"), on_failed="cancel")
    box.run_all(raise_errors=False)
    assert batch.then is not None
    assert batch.then.state == "cancelled"
    assert batch.counts().failed == 1


def test_bulk_is_all_or_nothing(box: Box) -> None:
    texts = ["a\tb", "c\nd", "e\\f", 'quote"', "\N{SNOWMAN}", "\x0b\u2028 line"]
    counts: list[int] = []
    jobs = [mail.using(delay=n and f"{n}m", meta={"n": n}).prepare(text) for n, text in enumerate(texts)]
    assert app.enqueue_many(jobs, progress=counts.append) == len(texts) == counts[-1]
    assert [job.args["to"] for job in box.enqueued] == texts
    assert [job.delay for job in box.enqueued] == [timedelta(minutes=n) for n in range(len(texts))]

    def failing() -> Iterator[Any]:
        yield from jobs * 2000
        raise OSError("the file ended")

    with pytest.raises(OSError, match="the file ended"):
        app.enqueue_many(failing())
    with pytest.raises(OSError, match="the file ended"):
        app.batch(failing(), then=mail.prepare("then"))
    with pytest.raises(UsageError, match="unique key"):
        app.enqueue_many([mail.using(unique="k").prepare("x")])
    assert len(box.enqueued) == len(texts)


def test_cancel(box: Box) -> None:
    job = mail.enqueue("x")
    assert (job.cancel("not wanted"), job.cancel()) == ("cancelled", "cancelled")
    box.run()
    assert (job.state, box.enqueued[0].cancel_reason, ran) == ("cancelled", "not wanted", [])


def test_a_running_job_sees_its_cancel(box: Box) -> None:
    own = App()
    own.queue("default")
    steps: list[int] = []

    @own.task
    def loop(ctx: Ctx) -> None:
        for step in ctx.track(range(10)):
            steps.append(step)
            if step == 2:
                assert job.cancel() == "cancelling"

    with own.testing() as other:
        job = loop.enqueue()
        other.run()
    assert (job.state, steps) == ("cancelled", [0, 1, 2])
    box.assert_nothing_enqueued()


def test_waiting_for_a_job_that_nothing_runs_is_an_error_that_says_so(box: Box) -> None:
    with pytest.raises(UsageError, match=r"call box.run\(\)"):
        mail.enqueue("x").result(timeout=1)


def test_run_on_wait() -> None:
    with app.testing(run_on_wait=True):
        assert mail.enqueue("x").result() == "hello x"
        assert app.batch([mail.prepare("y")], then=mail.prepare("z")).wait().succeeded == 1


async def _use_async_box() -> None:
    async with app.testing(now=MONDAY) as box:
        job, other = await amail.aenqueue("async"), await mail.aenqueue("sync")
        with pytest.raises(UsageError, match=r"await box.arun\(\)"):
            box.run()
        await box.arun()
        assert (await job.aresult(), await other.aresult()) == ("async", "hello sync")
        await flaky.aenqueue(1)
        await box.arun_all()
        assert box.clock.now == MONDAY + timedelta(seconds=2)
        assert await app.aenqueue_many([mail.prepare("many")]) == 1
        batch = await app.abatch([amail.prepare("b")])
        await box.arun()
        assert (await batch.acounts()).succeeded == 1
        await broken.aenqueue()
        with pytest.raises(JobFailed):
            await box.arun()
    async with app.testing(run_on_wait=True):
        assert await (await amail.aenqueue("waits")).aresult() == "waits"
        assert (await (await app.abatch([amail.prepare("b")])).await_end()).succeeded == 1


def test_async_tests() -> None:
    ran.clear()
    asyncio.run(_use_async_box())


def test_async_handlers_run_in_blocking_tests(box: Box) -> None:
    job = amail.enqueue("x")
    box.run()
    assert job.result() == "x"


def test_enqueues_of_other_threads_are_captured(box: Box) -> None:
    def enqueue() -> None:
        for n in range(100):
            mail.using(unique=str(n)).enqueue("x")

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(box.enqueued) == 100
    assert sorted(job.id for job in box.enqueued) == list(range(1, 101))


def test_boxes_nest(box: Box) -> None:
    mail.enqueue("outer")
    with app.testing() as inner:
        mail.enqueue("inner")
        inner.assert_enqueued(mail, "inner", count=1)
    mail.enqueue("outer again")
    assert [job.args["to"] for job in box.enqueued] == ["outer", "outer again"]
    with pytest.raises(UsageError, match="open already"), box:
        pass


def test_a_test_that_ends_inside_a_handler_ends(box: Box) -> None:
    own = App()
    own.queue("default")

    @own.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    with own.testing() as other:
        job = interrupted.enqueue()
        with pytest.raises(KeyboardInterrupt):
            other.run()
        assert (job.state, other.enqueued[0].attempt) == ("ready", 0)
    box.assert_nothing_enqueued()


def test_a_job_that_never_ends_is_bounded(box: Box) -> None:
    own = App()
    own.queue("default")

    @own.task
    def polls() -> None:
        raise Snooze("1m")

    with own.testing() as other:
        polls.enqueue()
        with pytest.raises(UsageError, match="20 attempts were run"):
            other.run_all(max_attempts=20)
    box.assert_nothing_enqueued()


def test_hooks_run_once_around_the_jobs_if_asked() -> None:
    own = App()
    own.queue("default")
    calls: list[str] = []

    @own.on_worker_start
    async def start() -> None:
        calls.append("start")

    @own.on_worker_stop
    def stop() -> None:
        calls.append("stop")

    @own.task
    async def work() -> None:
        calls.append("work")

    with own.testing() as box:
        work.enqueue()
        box.run()
    assert calls == ["work"]
    with own.testing(run_hooks=True) as box:
        work.enqueue()
        work.enqueue()
        box.run()
    assert calls == ["work", "start", "work", "work", "stop"]


def test_a_failed_assertion_shows_what_was_enqueued_instead(box: Box) -> None:
    mail.enqueue("ada")
    flaky.using(unique="k").enqueue(1)
    with pytest.raises(AssertionError) as raised:
        box.assert_enqueued(mail, to="bob", queue="api")
    assert str(raised.value).splitlines() == [
        "expected at least one job like mail(to='bob'), queue='api', found 0",
        "  #1 mail(to='ada') on queue default: ready   <- to is 'ada'; queue is 'default'",
        "  #2 flaky(fails=1) on queue api: ready, unique='k'   <- another task",
    ]
    with pytest.raises(AssertionError, match="expected 2 jobs like mail"):
        box.assert_enqueued(mail, count=2)
    with pytest.raises(AssertionError, match="expected 0 jobs like mail"):
        box.assert_not_enqueued(mail)
    with pytest.raises(AssertionError, match="expected no job, found 2"):
        box.assert_nothing_enqueued()
    box.assert_not_enqueued(mail, to="bob")
    box.clear()
    box.assert_nothing_enqueued()


def test_patterns(box: Box) -> None:
    mail.using(queue="api", meta={"why": "test", "n": 1}, priority=3).enqueue("ada", subject="x")
    box.assert_enqueued("mail", to=mock.ANY)
    box.assert_enqueued(mail.using(queue="api", meta={"why": "test"}), "ada")
    box.assert_enqueued(mail.using(queue="api").prepare("ada", subject="x"))
    box.assert_enqueued(mail, args={"to": "ada"}, priority=3)
    assert [job.id for job in box.find(mail, subject="x")] == [1]
    assert box.find(flaky) == []
    for wrong, text in [
        (lambda: box.assert_enqueued(mail, too="ada"), "unexpected keyword argument 'too'"),
        (lambda: box.assert_enqueued("male"), "no task 'male'"),
        (lambda: box.assert_enqueued(mail("ada")), "no task"),  # type: ignore[arg-type]
        (lambda: box.assert_enqueued(7), "not a task"),  # type: ignore[arg-type]
        (lambda: box.assert_enqueued(mail, count=0), "assert_not_enqueued"),
    ]:
        with pytest.raises(UsageError, match=text):
            wrong()


def test_a_parameter_with_the_name_of_an_option_is_refused_with_the_way_to_pass_it(box: Box) -> None:
    own = App()
    own.queue("default")

    @own.task
    def route(queue: str) -> None: ...

    with own.testing() as other:
        route.enqueue("north")
        with pytest.raises(UsageError, match="is an option of assert_enqueued and a parameter of route"):
            other.assert_enqueued(route, queue="north")
        other.assert_enqueued(route, args={"queue": "north"})
        other.assert_enqueued(route, "north")
    box.assert_nothing_enqueued()


def test_schedules_fire_by_the_clock() -> None:
    own = App()
    own.queue("default")
    seen: list[str] = []

    @own.schedule("0 3 * * *", tz="Europe/Berlin")
    @own.task
    def nightly(ctx: Ctx) -> None:
        seen.append(ctx.meta["tick"])

    @own.schedule(every="6h", scope="tenant", scopes={"a": {"n": 1}}, overlap="skip")
    @own.task
    def per_tenant(n: int = 0) -> None:
        seen.append(f"tenant {n}")

    with own.testing(now=MONDAY) as box:
        made = box.fire_schedules("1d")
        assert [job.task for job in made] == ["per_tenant", "nightly"], "overlap=skip: the first one waits"
        assert box.clock.now == MONDAY + timedelta(days=1)
        box.run()
        assert app.client.substitute is None
        assert own.add_scope(per_tenant.name, "b", {"n": 2})
        assert not own.add_scope(per_tenant.name, "b", {"n": 2})
        seen.clear()
        assert len(box.fire_schedules(MONDAY + timedelta(days=2), run=True)) == 9
        assert seen.count("tenant 1") == seen.count("tenant 2") == 4
        assert own.remove_scope(per_tenant.name, "b")
        with pytest.raises(NotFound):
            own.add_scope("nightly", "c")


def test_the_box_knows_every_parameter_of_an_enqueue() -> None:
    """An option that is added to enqueue.sql must be understood by the box, too."""
    text = (Path(transport.__file__).parents[1] / "job/enqueue.sql").read_text(encoding="utf-8")
    assert set(re.findall(r"%\((\w+)\)s", text)) == set(transport._PARAMETER_FIELDS)


def test_the_box_knows_the_columns_of_a_copy() -> None:
    job = Path(transport.__file__).parents[1] / "job"
    for name, columns in (
        ("copy_plain", transport.PLAIN_COLUMNS),
        ("copy_all_columns", transport.ALL_COLUMNS),
    ):
        found = re.search(r"\(([^)]*)\)\s*FROM STDIN", (job / f"{name}.sql").read_text(encoding="utf-8"))
        assert found is not None
        assert tuple(re.split(r",\s*", found[1])) == columns


def test_a_query_that_no_client_sends_is_refused(box: Box) -> None:
    from pgworkers.job import queries

    with pytest.raises(UsageError, match="cannot answer the query 'query_queues'"):
        app.client.run(queries.list_queues())


def test_ctx_connect_needs_a_named_database() -> None:
    own = App()
    own.queue("default")

    @own.task(retries=0)
    def reads(ctx: Ctx) -> None:
        ctx.connect()

    with own.testing() as box:
        reads.enqueue()
        with pytest.raises(JobFailed, match="no database is named for this test"):
            box.run()


def test_jobs_can_be_watched_and_run_by_an_executor_in_a_box() -> None:
    app = App()
    app.queue("default")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with app.testing(run_on_wait=True):
        assert [change.state for change in add.enqueue(1, 2).watch()] == ["succeeded"]
        assert add.enqueue(1, 2).wait() == "succeeded"
        with app.executor() as pool:
            assert list(pool.map(add, [1, 2], [3, 4])) == [4, 6]
    with app.testing(), pytest.raises(UsageError, match=r"call box\.run"):
        list(add.enqueue(1, 2).watch())
