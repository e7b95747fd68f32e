"""Declaring queues and tasks: what is accepted, what is refused where it is written, and what describe says."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from pgworkers import App, Ctx, ExponentialBackoff, UsageError
from pgworkers.settings import Settings
from pgworkers.specs import AppSpec, BackoffKind, BackoffSpec


def made(*queues: str) -> App:
    app = App(dsn="postgresql://nowhere.invalid/x")
    for name in queues:
        app.queue(name)
    return app


app = made("default")


@app.task
def module_level(x: int) -> int:
    """Doubles.

    Really.
    """
    return 2 * x


def test_importing_and_declaring_opens_nothing() -> None:
    code = (
        "import sys\nfrom pgworkers import App, Ctx\napp = App()\napp.queue('q')\n"
        "@app.task\ndef f(ctx: Ctx, x: int) -> int: return x\n"
        "app.describe(); f(None, 1); f.run_handler(None, b'{\"x\": 1}'); f.encode_result(1, 9)\n"
        "import threading\n"
        "heavy = {'psycopg', 'rich', 'click', 'psutil', 'croniter', 'prometheus_client'}\n"
        "print(heavy & set(sys.modules), threading.active_count())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "set() 1"


def test_describe_is_complete_and_survives_json() -> None:
    app = made()
    app.queue(
        "reports", workers=4, memory="2GB", nice=5, threads=2, max_jobs=500, max_rss="4GB", preload=["json"]
    )
    app.queue("api", cluster_workers=12)
    app.settings["drain_timeout"] = 60.0

    @app.task(
        queue="reports", timeout="10m", memory="1GB", retries=5, priority=10, deadline=timedelta(hours=1)
    )
    def render(ctx: Ctx, report_id: int, *, fmt: str = "pdf") -> dict[str, str]:
        """Draw a report."""
        return {}

    spec = app.describe()
    assert msgspec.json.decode(msgspec.json.encode(spec), type=AppSpec) == spec
    assert [q.name for q in spec.queues] == ["reports", "api"]
    assert (spec.queues[0].workers, spec.queues[0].memory, spec.queues[0].preload) == (4, 2 << 30, ("json",))
    (task,) = spec.tasks
    assert (task.name, task.queue, task.timeout, task.memory, task.deadline) == (
        "render",
        "reports",
        600,
        1 << 30,
        3600,
    )
    assert (task.max_attempts, task.max_crashes, task.priority) == (6, 3, 10)
    assert (task.doc, task.signature) == ("Draw a report.", "(report_id: int, *, fmt: str = 'pdf')")
    assert spec.name == "test_app.py"
    assert spec.settings == {"dsn": "postgresql://nowhere.invalid/x", "drain_timeout": 60.0}


def test_defaults_of_a_task() -> None:
    spec = app.describe().tasks[0]
    assert (spec.name, spec.queue, spec.max_attempts, spec.doc) == ("module_level", "default", 20, "Doubles.")
    assert spec.backoff == BackoffSpec()


@pytest.mark.parametrize(
    ("backoff", "spec"),
    [
        (None, BackoffSpec()),
        ("30s", BackoffSpec(kind=BackoffKind.FIXED, base=30, jitter=0)),
        (5, BackoffSpec(kind=BackoffKind.FIXED, base=5, jitter=0)),
        (["1s", 10], BackoffSpec(kind=BackoffKind.LIST, delays=(1, 10), jitter=0)),
        (
            ExponentialBackoff(base="1s", factor=3, cap="1m", jitter=0.5),
            BackoffSpec(base=1, factor=3, cap=60, jitter=0.5),
        ),
        (lambda attempt: attempt, BackoffSpec(kind=BackoffKind.FUNCTION)),
    ],
)
def test_backoffs(backoff: Any, spec: BackoffSpec) -> None:
    app = made("q")
    app.task(backoff=backoff)(lambda_like)
    assert app.describe().tasks[0].backoff == spec


def lambda_like() -> None: ...


def test_a_backoff_function_is_asked_and_its_failures_are_not_the_jobs() -> None:
    app = made("q")

    @app.task(backoff=lambda attempt: {1: "1m", 2: 5.5, 3: -1, 4: float("nan")}[attempt])
    def job() -> None: ...

    said = [job.backoff_delay(attempt, ValueError()) for attempt in range(1, 6)]
    assert said == [60.0, 5.5, None, None, None]
    assert module_level.backoff_delay(1, None) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": -1}, "retries: -1 is out of range"),
        ({"retries": True}, "retries: True is not a whole number"),
        ({"max_crashes": 0}, "max_crashes: 0 is out of range"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"timeout": 0}, "timeout: must be longer than 0"),
        ({"timeout": float("nan")}, "timeout: nan is out of range"),
        ({"memory": "12"}, "memory: '12' is less than 1MB"),
        ({"priority": 1 << 40}, "priority: 1099511627776 is out of range"),
        ({"backoff": []}, "backoff: an empty list"),
        ({"backoff": object()}, "backoff: object is not a back-off"),
        ({"backoff": ExponentialBackoff(factor=0.5)}, "backoff: factor must be at least 1"),
        ({"backoff": ["1s", "x"]}, "backoff: 'x' is not a duration"),
        ({"queue": ""}, "queue: '' is empty"),
        ({"name": "a\nb"}, "task name: 'a\\nb' holds control"),
        ({"name": "x" * 300}, "is too long: 300 bytes"),
    ],
)
def test_task_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    app = made("q")
    with pytest.raises(UsageError) as caught:
        app.task(**options)(lambda_like)
    assert said in str(caught.value)
    assert not app.tasks


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("", {}, "queue name: '' is empty"),
        (" x", {}, "empty or has spaces around it"),
        ("a\x1bb", {}, "control or unprintable"),
        ("a\nb", {}, "control or unprintable"),
        ("\ud800", {}, "control or unprintable"),
        ("ø" * 101, {}, "too long: 202 bytes, at most 200"),
        (7, {}, "queue name: 7 is not a string"),
        ("a,b", {}, "queue name: 'a,b' contains ',', so that `-Q a,b:4` could not name it"),
        ("a:4", {}, "queue name: 'a:4' contains ':'"),
        ("-a", {}, "queue name: '-a' begins with '-'"),
        ("q", {"workers": 0}, "workers: 0 is out of range (1 to 1024)"),
        ("q", {"workers": 1025}, "workers: 1025 is out of range"),
        ("q", {"nice": 20}, "nice: 20 is out of range"),
        ("q", {"max_jobs": 0}, "max_jobs: 0 is out of range"),
        ("q", {"preload": "numpy"}, "preload must be a list"),
    ],
)
def test_queues_that_cannot_work_are_refused(name: Any, options: dict[str, Any], said: str) -> None:
    app = made()
    with pytest.raises(UsageError) as caught:
        app.queue(name, **options)
    assert said in str(caught.value)
    assert not app.queues


@pytest.mark.parametrize("name", ["a,b", "a:4", "-a"])
def test_names_that_no_command_line_can_say_are_refused_wherever_they_are_declared(name: str) -> None:
    app = made("default")
    for declare in (
        lambda: app.task(name=name)(lambda_like),
        lambda: app.task(queue=name)(lambda_like),
        lambda: app.route("img.*", name),
        lambda: module_level.using(queue=name),
    ):
        with pytest.raises(UsageError, match="`-Q a,b:4` could not name it"):
            declare()


def test_a_misspelt_option_is_named_with_the_one_that_was_meant() -> None:
    app = made("default")
    with pytest.raises(
        UsageError, match=r"^task\(\) has no option 'retrys'; did you mean 'retries'\? It has name, "
    ):
        app.task(retrys=5)  # type: ignore[call-overload]
    with pytest.raises(
        UsageError, match=r"^using\(\) has no option 'dely'; did you mean 'delay'\? It has delay, "
    ):
        module_level.using(dely="5m")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"^schedule\(\) has no option 'qqq'; It has "):
        app.schedule("@daily", qqq=1)  # type: ignore[call-arg]


def test_a_connection_that_is_not_there_is_no_transaction() -> None:
    with pytest.raises(
        UsageError, match=r"^using\(conn=None\): there is no connection.*nothing was enqueued"
    ):
        module_level.using(conn=None)  # type: ignore[typeddict-item]


def test_a_queue_declared_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="queue 'q' is declared twice"):
        made("q", "q")


def test_a_task_declared_twice_is_refused_with_both_places() -> None:
    app = made("q")

    def job() -> None: ...

    app.task(job)
    here = __file__.replace(".", r"\.")
    with pytest.raises(UsageError, match=rf"'job' is declared twice: {here}:\d+ and {here}:\d+; give one"):
        app.task(job)
    assert app.task(name="job2")(job).name == "job2"


def test_no_queue_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match=r"test_app.py declares no queue; add app.queue\("):
        made().describe()


@pytest.mark.parametrize(
    ("queues", "asked", "placed"),
    [
        (("only",), None, "only"),
        (("a", "default"), None, "default"),
        (("a", "b"), "b", "b"),
        (("a", "b"), None, "no queue is named and the app has several: a, b"),
        (("a", "b"), "c", "queue 'c' is not declared (declared: a, b); add app.queue(\"c\")"),
    ],
)
def test_where_a_task_is_placed(queues: tuple[str, ...], asked: str | None, placed: str) -> None:
    app = made(*queues)
    app.task(queue=asked)(lambda_like)
    if placed in queues:
        assert app.describe().tasks[0].queue == placed
    else:
        with pytest.raises(UsageError) as caught:
            app.describe()
        assert placed in str(caught.value)


def test_the_queue_may_be_declared_after_the_task() -> None:
    app = made()
    app.task(queue="later")(lambda_like)
    app.queue("later")
    assert app.describe().tasks[0].queue == "later"


def test_a_task_must_be_a_function() -> None:
    app = made("q")

    def generator() -> Any:
        yield 1

    async def async_generator() -> Any:
        yield 1

    class Thing:
        def method(self, x: int) -> None: ...

    for wrong, said in [
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (Thing, "is not a function"),
        (7, "is not a function"),
        (Thing.method, "methods cannot be tasks"),
        (module_level, "is a task already"),
        (lambda ctx: None, None),
    ]:
        if said is None:
            assert app.task(wrong).name == "<lambda>"
            continue
        with pytest.raises(UsageError, match=said):
            app.task(wrong)  # type: ignore[call-overload]


def test_a_context_in_the_wrong_place_is_refused() -> None:
    def job(x: int, ctx: Ctx) -> None: ...

    with pytest.raises(UsageError, match="ctx is a Ctx but not the first parameter"):
        made("q").task(job)


def test_a_task_is_still_a_function() -> None:
    assert module_level(4) == 8
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ is not None
    assert pickle.loads(pickle.dumps(module_level)) is module_level


def test_the_plain_call_makes_a_context_of_none() -> None:
    app = made("q")

    @app.task
    def job(ctx: Ctx, n: int) -> list[int]:
        ctx.checkpoint["n"] = n
        return list(ctx.track(range(n)))

    assert job(None, 3) == [0, 1, 2]
    mine = Ctx.for_test(checkpoint={"n": 1})
    assert job(mine, n=2) == [0, 1]
    assert mine.checkpoint == {"n": 2}


def test_async_handlers_give_a_coroutine() -> None:
    app = made("q")

    @app.task
    async def job(n: int) -> int:
        return n

    assert job.is_async
    assert not module_level.is_async
    for coroutine in (job(3), job.run_handler(None, b'{"n": 3}')):
        with pytest.raises(StopIteration) as caught:
            coroutine.send(None)
        assert caught.value.value == 3


def test_hooks_are_kept_in_order() -> None:
    app = made("q")

    @app.on_worker_start
    def first() -> None: ...

    @app.on_worker_start
    def second() -> None: ...

    @app.on_worker_stop
    def last() -> None: ...

    assert [hook.function for hook in app.hooks.worker_start] == [first, second]
    assert [hook.function for hook in app.hooks.worker_stop] == [last]


def test_settings_are_checked_where_they_are_written() -> None:
    with pytest.raises(UsageError, match="there is no setting 'drian'"):
        App(drian="1m")
    with pytest.raises(UsageError, match="drain_timeout: 'x' is not a duration"):
        App(drain_timeout="x")


def test_the_environment_comes_before_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGWORKERS_PAYLOAD_LIMIT", "2MB")
    assert App(payload_limit="3MB").client.settings.payload_limit == 2 << 20


def test_bind_takes_the_masters_settings() -> None:
    app = made("q")
    app.use_database("postgresql://there.invalid/y", Settings(schema="other"))
    assert app.client.settings.schema == "other"
    assert app.client.database.dsn() == "postgresql://there.invalid/y"
    app.use_database("z", {"schema": "third"})
    assert app.client.settings.schema == "third"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"delay": "5m", "at": "x"}, "give one of them"),
        ({"at": "tomorrow"}, "is not a datetime"),
        ({"at": datetime(2024, 1, 1)}, "has no time zone"),
        ({"on_conflict": "ignore", "unique": "x"}, "use return, replace, raise"),
        ({"on_conflict": "raise"}, "without unique="),
        ({"unique": ""}, "is not a key"),
        ({"idempotency_key": ""}, "idempotency_key: '' is not a key"),
        ({"idempotency_window": "1h"}, "without idempotency_key="),
        ({"idempotency_key": "k", "idempotency_window": 0}, "must be longer than 0"),
        ({"idempotency_key": "k", "idempotency_window": "32d"}, "longer than 31 days"),
        ({"unique": "a\0"}, "NUL"),
        ({"unique": "x" * 1001}, "1001 bytes, at most 1000"),
        ({"meta": [1]}, "list is not a mapping"),
        ({"meta": {"x": float("nan")}}, "meta: x is nan"),
        ({"delay": -1}, "out of range"),
        ({"retries": -1}, "out of range"),
        ({"memory": "lots"}, "is not a size"),
    ],
)
def test_using_refuses_what_cannot_work(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        module_level.using(**how)
    assert said in str(caught.value)


def test_prepare_uses_the_options_and_the_tasks_own() -> None:
    app = made("a", "b")

    @app.task(queue="a", priority=3, retries=2, expires="1h", deadline="2h")
    def job(n: int) -> None: ...

    plain = job.prepare(1).job
    assert (plain.queue, plain.priority, plain.max_attempts, plain.expires, plain.deadline) == (
        "a",
        3,
        3,
        3600,
        7200,
    )
    assert (plain.args_json, plain.timeout, plain.delay, plain.meta_json) == ('{"n":1}', None, None, None)
    other = (
        job.using(queue="b", priority=0, retries=0, expires="1m", timeout="5s", delay="1m", meta={"why": "x"})
        .prepare(2)
        .job
    )
    assert (other.queue, other.priority, other.max_attempts, other.expires) == ("b", 0, 1, 60)
    assert (other.timeout, other.delay, other.meta_json) == (5, 60, '{"why":"x"}')
    with pytest.raises(UsageError, match="queue 'c' is not declared"):
        job.using(queue="c").prepare(1)
