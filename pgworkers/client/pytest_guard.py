"""Refuses to open a database that a test did not name.

A test that enqueues by accident would put a job into the developer's own database, and a host would run it. So while pytest
runs tests in this process, a client opens only a database that the test asked for:

- `app.use_database(dsn)`, which the fixture `pgworkers_database` calls
- `App(dsn=...)` in a test file or a conftest.py
- `--dsn` of a command that the test runs in its own process
- `pgworkers.testing.allow_real_database()`, or the ini option `pgworkers_real_database = true`, for the whole run

The plugin reports the begin and the end of a run. Without the plugin, PYTEST_CURRENT_TEST shows that a test runs. It is not
enough by itself: processes that a test starts inherit it. They are not tests unless they import pytest.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pgworkers.errors import UsageError


@dataclass(slots=True)
class _PytestRun:
    """What is known about pytest in this process."""

    is_reported: bool = False  # the plugin is loaded, and the run has not ended
    is_real_database_allowed: bool = False


_run = _PytestRun()


def report_run(is_running: bool) -> None:
    """For the plugin: pytest begins or ends in this process."""
    _run.is_reported = is_running


def allow_real_database(is_allowed: bool = True) -> None:
    """Let every test of this process open the database of its settings. Call it in a conftest.py."""
    _run.is_real_database_allowed = is_allowed


def is_pytest_running() -> bool:
    """True if pytest runs tests in this process."""
    return "pytest" in sys.modules and (_run.is_reported or "PYTEST_CURRENT_TEST" in os.environ)


def is_test_file(path: Path) -> bool:
    """True if code in this file belongs to the tests, by its name or because it is the test that runs."""
    if path.name == "conftest.py" or path.name.startswith("test_") or path.stem.endswith("_test"):
        return True
    running = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    return bool(running) and Path(running).name == path.name


def refuse_unnamed_database(naming_file: Path | None = None) -> None:
    """UsageError if a test runs that did not name the database. `naming_file`: the file whose `App(dsn=...)` names it."""
    if not is_pytest_running() or _run.is_real_database_allowed:
        return
    if naming_file is not None and is_test_file(naming_file):
        return
    raise UsageError(
        "a test tried to use the real database of this app; nothing was sent to it. Capture the jobs with "
        "`with app.testing() as box:` or the fixture pgworkers_box, or name a database: the fixture pgworkers_database, "
        "app.use_database(dsn), or pgworkers_real_database = true in the pytest settings (docs/how-to/test-your-app.md)"
    )
