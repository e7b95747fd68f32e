"""The pytest plugin: fixtures that capture jobs, make databases and start hosts. docs/how-to/test-your-app.md

pytest loads it in every project where pgworkers is installed, so it imports nothing that a test has not asked for. While it
is loaded, an app opens no database that the test did not name (`client/pytest_guard`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgworkers.client import pytest_guard

if TYPE_CHECKING:
    from pgworkers.app import App
    from pgworkers.testing.box import Box
    from pgworkers.testing.databases import TestDatabases
    from pgworkers.testing.host import TestHost

_HOST = pytest.StashKey["TestHost"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pgworkers")
    group.addoption(
        "--pgworkers-dsn",
        help="server for the fixture pgworkers_database: a login that may create databases (default: an embedded server)",
    )
    group.addoption(
        "--pgworkers-chaos",
        action="store_true",
        help="run the tests marked pgworkers_chaos again and again, with a fault at each point of their jobs",
    )
    parser.addini("pgworkers_app", 'the app of the fixtures, e.g. "shop.jobs:app"')
    parser.addini(
        "pgworkers_real_database",
        "let every test use the database of the app's settings",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    pytest_guard.report_run(True)
    if config.getini("pgworkers_real_database"):
        pytest_guard.allow_real_database()
    for line in (
        "pgworkers_box(now=None, run_hooks=False, run_on_wait=False): options of the fixture pgworkers_box",
        "pgworkers_host(arguments=(), environ=None): options of the fixture pgworkers_host",
        "pgworkers_chaos(moments=5, max_runs=100, seed=1): with --pgworkers-chaos, run this test with faults",
    ):
        config.addinivalue_line("markers", line)


def pytest_unconfigure(config: pytest.Config) -> None:
    pytest_guard.report_run(False)


@pytest.fixture(scope="session")
def pgworkers_app(pytestconfig: pytest.Config) -> App:
    """The app of the other fixtures: that of the ini option `pgworkers_app`. Override it to return yours."""
    config = pytestconfig.getini("pgworkers_app")
    if not config:
        raise pytest.UsageError(
            'the fixtures of pgworkers need your app: set pgworkers_app = "shop.jobs:app" in the pytest settings, or '
            "write a fixture pgworkers_app that returns it"
        )
    from pgworkers.app_import import import_app

    return import_app(str(config))


@pytest.fixture
def pgworkers_box(request: pytest.FixtureRequest, pgworkers_app: App) -> Iterator[Box]:
    """Capture every enqueue of this test in memory: the same as `with app.testing() as box:`."""
    marker = request.node.get_closest_marker("pgworkers_box")
    with pgworkers_app.testing(**(marker.kwargs if marker is not None else {})) as box:
        yield box


@pytest.fixture(scope="session")
def pgworkers_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestDatabases]:
    """The server of `pgworkers_database`: one for the whole run, also with pytest-xdist."""
    from pgworkers.testing.databases import TestDatabases, embedded_databases

    dsn = pytestconfig.getoption("--pgworkers-dsn")
    if dsn is not None:
        yield TestDatabases(dsn)
        return
    base = tmp_path_factory.getbasetemp()
    is_xdist_worker = hasattr(pytestconfig, "workerinput")
    with embedded_databases((base.parent if is_xdist_worker else base) / "pgworkers-server") as databases:
        yield databases


@pytest.fixture
def pgworkers_database(pgworkers_app: App, pgworkers_server: TestDatabases) -> Iterator[str]:
    """A migrated database of this test's own. The app uses it during the test. Returns its address."""
    client = pgworkers_app.client
    dsn = pgworkers_server.create(client.database.settings.schema)
    try:
        client.close()
        with client.database.temporarily(dsn):
            yield dsn
            client.close()
    finally:
        pgworkers_server.drop(dsn)


@pytest.fixture
def pgworkers_host(
    request: pytest.FixtureRequest, pgworkers_app: App, pgworkers_database: str, tmp_path: Path
) -> Iterator[TestHost]:
    """A running host with this test's database: `host.drain()` waits until its queues are empty."""
    from pgworkers.testing.host import TestHost, find_config

    marker = request.node.get_closest_marker("pgworkers_host")
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    options["environ"] = {**options.get("environ", {}), **_chaos_environ(request)}
    host = TestHost(
        request.config.getini("pgworkers_app") or find_config(pgworkers_app),
        pgworkers_database,
        tmp_path / "pgworkers-host.log",
        schema=pgworkers_app.client.database.settings.schema,
        **options,
    )
    request.node.stash[_HOST] = host
    host.start()
    try:
        yield host
    finally:
        host.stop()


def _chaos_environ(request: pytest.FixtureRequest) -> dict[str, str]:
    """Variables that plan a fault, if this run of the test has one."""
    if not request.config.getoption("--pgworkers-chaos"):
        return {}
    from pgworkers.testing.chaos import RUN

    run = request.node.stash.get(RUN, None)
    return {} if run is None else run.environ


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a marked test as a series of runs with faults."""
    if item.get_closest_marker("pgworkers_chaos") is None or not item.config.getoption("--pgworkers-chaos"):
        return None
    from pgworkers.testing.chaos import run_series

    run_series(item, nextitem)
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--pgworkers-chaos"):
        return
    from pgworkers.testing.chaos import summary_lines

    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    if lines := summary_lines(reports):
        terminalreporter.section("pgworkers chaos")
        for line in lines:
            terminalreporter.line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows the log of its host."""
    report = yield
    if report.failed and _HOST in item.stash:
        report.sections.append(("pgworkers host", item.stash[_HOST].log_tail()))
    return report
