"""While pytest runs, an app opens no database that the test did not name."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgworkers import App, DatabaseUnreachable, UsageError
from pgworkers.app_import import import_app
from pgworkers.cli.error_report import run_command_line
from pgworkers.client import pytest_guard

NUMBERS = itertools.count()
NOWHERE = "host=/nowhere/at/all"
APP = f"""
from pgworkers import App
app = App(dsn={NOWHERE!r})
app.queue("default")
@app.task
def work() -> None: ...
"""


@pytest.fixture
def guarded() -> Iterator[None]:
    """Our own suite allows real databases. Here the guard is as users have it."""
    pytest_guard.allow_real_database(False)
    yield
    pytest_guard.allow_real_database()


@pytest.fixture
def shop(tmp_path: Path) -> App:
    """An app in a file of its own, with the address of the developer's database."""
    file = tmp_path / f"shop_{next(NUMBERS)}.py"  # each module is imported once
    file.write_text(APP)
    return import_app(str(file))


@pytest.mark.usefixtures("guarded")
def test_an_enqueue_outside_a_box_is_refused(shop: App) -> None:
    task = shop.tasks["work"]
    with pytest.raises(UsageError, match=r"nothing was sent to it.*pgworkers_box"):
        task.enqueue()
    with pytest.raises(UsageError, match="nothing was sent to it"):
        asyncio.run(task.aenqueue())
    with pytest.raises(UsageError, match="nothing was sent to it"):
        shop.enqueue_many([task.prepare()])
    with pytest.raises(UsageError, match="nothing was sent to it"):
        print(shop.job(1).state)
    with shop.testing() as box:
        task.enqueue()
        assert len(box.enqueued) == 1


@pytest.mark.usefixtures("guarded")
def test_a_database_that_the_test_named_is_opened(shop: App) -> None:
    with shop.client.database.temporarily(NOWHERE), pytest.raises(DatabaseUnreachable):
        shop.tasks["work"].enqueue()
    with pytest.raises(UsageError, match="nothing was sent to it"):
        shop.tasks["work"].enqueue()
    shop.use_database(NOWHERE)
    with pytest.raises(DatabaseUnreachable):
        shop.tasks["work"].enqueue()


@pytest.mark.usefixtures("guarded")
def test_an_app_of_the_test_file_may_name_its_database(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(dsn=NOWHERE)
    app.queue("default")
    with pytest.raises(DatabaseUnreachable):
        app.task(name="work")(lambda: None).enqueue()
    monkeypatch.setenv("DATABASE_URL", "host=/the/database/of/the/developer")  # takes precedence
    overruled = App(dsn=NOWHERE)
    overruled.queue("default")
    with pytest.raises(UsageError, match="nothing was sent to it"):
        overruled.task(name="work")(lambda: None).enqueue()
    nameless = App()
    nameless.queue("default")
    with pytest.raises(UsageError, match="nothing was sent to it"):
        nameless.task(name="work")(lambda: None).enqueue()


@pytest.mark.usefixtures("guarded")
def test_a_command_in_the_process_of_a_test_needs_the_option_dsn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shop: App
) -> None:
    monkeypatch.setenv("DATABASE_URL", NOWHERE)
    words = ["--config", str(shop.source_file), "enqueue", "work"]
    assert run_command_line(words) == UsageError.exit_code
    assert "nothing was sent to it" in capsys.readouterr().err
    assert run_command_line(["--dsn", NOWHERE, *words]) == DatabaseUnreachable.exit_code


def test_a_suite_may_allow_real_databases(shop: App) -> None:
    with pytest.raises(DatabaseUnreachable):
        shop.tasks["work"].enqueue()


@pytest.mark.usefixtures("guarded")
def test_without_the_plugin_pytest_is_noticed_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest_guard.report_run(False)
    try:
        assert pytest_guard.is_pytest_running()
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        assert not pytest_guard.is_pytest_running()
        pytest_guard.report_run(True)
        assert pytest_guard.is_pytest_running()
    finally:
        pytest_guard.report_run(True)


def test_the_plugin_loads_nothing_that_a_project_without_jobs_would_pay_for() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import pgworkers.testing.pytest_plugin; "
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('pgworkers')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"psycopg", "msgspec", "asyncio", "click"} & set(ended.stdout.split()), ended.stdout


def test_a_process_that_a_test_starts_may_enqueue(shop: App) -> None:
    """It inherits PYTEST_CURRENT_TEST. A worker of a host that a test started may enqueue."""
    code = (
        "import os, sys; from pgworkers.client import pytest_guard\n"
        "assert 'PYTEST_CURRENT_TEST' in os.environ and not pytest_guard.is_pytest_running()\n"
        "from pgworkers import DatabaseUnreachable\nfrom pgworkers.app_import import import_app\n"
        f"task = import_app({str(shop.source_file)!r}).tasks['work']\n"
        "try: task.enqueue()\nexcept DatabaseUnreachable: print('tried')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout.strip(), ended.stderr) == ("tried", "")
