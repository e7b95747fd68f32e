"""Routes and built-in tasks, as an app declares them."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from pgworkers import App, Ctx, JobStopped, UsageError
from pgworkers.builtin_tasks import OUTPUT_TAIL_BYTES, CommandFailed

APP = "postgresql://nowhere.invalid/x"


def made(*queues: str) -> App:
    app = App(dsn=APP)
    for name in queues:
        app.queue(name)
    return app


def queue_of(app: App, name: str, **options: Any) -> str:
    def fn() -> None: ...

    return app.task(name=name, **options)(fn).queue


def test_the_first_route_that_fits_wins_and_a_task_that_names_its_queue_is_left_alone() -> None:
    app = made("default", "images", "big")
    app.route("img.huge", "big")
    app.route("img.*", "images")
    app.route("*", "big")
    app.route("img.*", "default")
    assert queue_of(app, "img.thumb") == "images"
    assert queue_of(app, "img.huge") == "big"
    assert queue_of(app, "mail") == "big"
    assert queue_of(app, "img.own", queue="default") == "default"


def test_without_a_fitting_route_it_is_as_before() -> None:
    app = made("default", "images")
    app.route("img.*", "images")
    assert queue_of(app, "mail") == "default"
    assert queue_of(app, "img") == "default"


def test_a_route_may_be_declared_before_or_after_its_tasks_and_reaches_the_master() -> None:
    app = made("default", "images")

    @app.task(name="img.thumb")
    def thumb() -> None: ...

    app.route("img.*", "images")
    assert app.describe().tasks[0].queue == "images"
    assert thumb.prepare().job.queue == "images"
    assert thumb.using(queue="default").prepare().job.queue == "default"


@pytest.mark.parametrize("pattern", ["", "*.img", "a*b", "a\nb"])
def test_patterns_that_cannot_work_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="route"):
        made("q").route(pattern, "q")


def test_a_route_to_a_queue_that_is_not_declared_is_refused_with_its_task() -> None:
    app = made("q")
    app.route("*", "nowhere")

    @app.task
    def t() -> None: ...

    with pytest.raises(UsageError, match="queue 'nowhere' is not declared"):
        app.describe()


def test_built_in_tasks_are_off_unless_included() -> None:
    app = made("q")
    assert not app.tasks
    app.include("exec", "echo")
    assert {(task.name, task.queue) for task in app.describe().tasks} == {("exec", "q"), ("echo", "q")}
    with pytest.raises(UsageError, match="there are call, echo and exec"):
        app.include("sudo")


def execute(app: App, *argv: str, ctx: Ctx | None = None, **more: Any) -> Any:
    return app.tasks["exec"](ctx, list(argv), **more)


@pytest.fixture
def app() -> App:
    app = made("q")
    app.include("exec", "echo", env=("LENT",))
    return app


def test_echo(app: App) -> None:
    assert app.tasks["echo"]({"a": [1]}) == {"a": [1]}


def test_exec_returns_the_end_of_the_output(app: App, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr)"
    assert execute(app, sys.executable, "-c", code) == {"status": 0, "output": "out\nerr\n"}
    assert capfd.readouterr().out == "out\nerr\n", "and where a handler's own output goes"


def test_exec_has_no_shell(app: App) -> None:
    said = execute(app, sys.executable, "-c", "import sys; print(sys.argv[1])", "$(id); `id` | cat")["output"]
    assert said == "$(id); `id` | cat\n"
    with pytest.raises(FileNotFoundError):
        execute(app, "echo hello")


def test_exec_that_fails_says_how_with_the_end_of_its_output(app: App) -> None:
    with pytest.raises(CommandFailed, match="exit status 3\nbye"):
        execute(app, sys.executable, "-c", "print('bye'); raise SystemExit(3)")
    with pytest.raises(CommandFailed, match="ended by SIGKILL"):
        execute(app, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(UsageError, match="argv is empty"):
        execute(app)


def test_a_flood_of_hostile_output_is_cut_and_stays_a_small_result(app: App) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'\x01\x00\xff\x1b' * 100_000 + b'end')"
    result = execute(app, sys.executable, "-c", code)
    assert result["output"].endswith("end")
    assert len(result["output"]) <= OUTPUT_TAIL_BYTES
    assert len(app.tasks["exec"].encode_result(result, 16 << 10)) <= 16 << 10


def test_exec_inherits_only_what_is_allowed(
    app: App, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any
) -> None:
    monkeypatch.setenv("PGWORKERS_DSN", "postgresql://u:canary@h/d")
    monkeypatch.setenv("LENT", "yes")
    monkeypatch.setenv("SECRET", "canary")
    code = "import os; print(sorted(os.environ.items())); print(os.getcwd())"
    said = execute(app, sys.executable, "-c", code, cwd="/", env={"OWN": "1"})["output"]
    assert "canary" not in said
    assert "('LENT', 'yes')" in said
    assert "('OWN', '1')" in said
    assert said.endswith("\n/\n")
    assert "('PATH'" in said


def test_a_descendant_that_keeps_the_pipe_is_not_waited_for(app: App) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '1']); print('gone')"
    assert execute(app, sys.executable, "-c", code)["output"] == "gone\n"


def test_a_stop_asks_the_program_first(app: App) -> None:
    said: list[bool] = []
    ctx = Ctx.for_test(cancelled=lambda: bool(said) or bool(said.append(True)))
    with pytest.raises(JobStopped):
        execute(app, sys.executable, "-c", "import time; time.sleep(60)", ctx=ctx)


def test_it_is_in_the_group_of_its_worker(app: App) -> None:
    said = execute(app, sys.executable, "-c", "import os; print(os.getpgrp())")["output"]
    assert int(said) == os.getpgrp()
