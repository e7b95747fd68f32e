"""What every test can ask for: a server, a database, a directory, and proof that nothing is left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import leftover_processes
from support.pooler import BOUNCER, MISSING
from support.server import OwnServer, Server, migrated, run_server
from support.watchdog import Watchdog

from pgworkers.testing import allow_real_database

# A shell gives those it starts in the background no Ctrl-C, and they hand that on: tests that send one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WATCHED = {"process", "tree", "fault", "security"}  # the directories whose tests start processes
#: Tests that cannot run through a pooler because of what they observe, not because of what the product does. They wait until
#: a session of a known process id is blocked or listens (the pooler has other sessions), terminate it by its name, count
#: sessions, allow no poll so that only a notification can help, or log in as another role than the pooler does.
#: Failures seen in others (PgBouncer in transaction mode): settings at the start of a session, which the pooler refuses
#: ("unsupported startup parameter: options"); a check of the settings that our own sessions begin with; a role, search_path
#: or timeout set in a session that the next client meets; LISTEN in one session and the answer in another; `run`, which
#: refuses a pooler, and the doctor, which reports one and whose statements have no timeout there; statements that a test
#: prepares on its own session, as only a host does, which connects directly (`test_libpq_session`).
NOT_POOLED_FILES = {
    "test_libpq_session.py",
    "test_query_plans.py",
    "test_query_plans_of_reads.py",
    "test_notified_hosts.py",
    "test_roles.py",
    "test_search_path.py",
    "test_leader_term.py",
    "test_session_settings.py",  # it puts a pooler of its own in front of the server
    "test_pooled_clients.py",
    # Their sessions have the settings of a host's sessions, which no pooler passes on.
    "test_bounded_duties.py",
    "test_limits_pages_read.py",
    "test_parked_jobs.py",
}
NOT_POOLED = {
    "test_a_job_that_is_forgotten_while_it_is_moved_leaves_nothing_behind",
    "test_a_job_that_is_requeued_while_it_is_moved_is_there_once",
    "test_limits_of_several_tasks_are_locked_in_one_order",
    "test_a_role_without_rights_gets_a_clear_error",
    "test_waiting_threads_share_one_connection_and_all_wake",
    "test_waiting_coroutines_share_one_connection_and_all_wake",
    "test_a_lost_notification_is_made_up_for_by_looking",
    "test_a_wait_ends_when_the_notification_names_no_ids",
    "test_one_connection_for_all_threads_and_calls",
    "test_one_connection_for_all_coroutines_of_a_loop",
    "test_an_idle_connection_that_broke_is_replaced_without_a_word",
    "test_an_enqueue_that_is_cut_is_unknown_and_not_sent_again",
    "test_a_look_that_is_cut_is_repeated_once",
    "test_an_exception_thrown_through_a_statement_gives_up_the_connection",
    "test_a_discard_that_waited_for_a_finish_answers_what_became_of_the_job",
    "test_two_operators_at_once_bring_a_job_back_once",
    "test_what_was_rescued_and_begun_again_under_the_statement_is_left_alone",
    "test_a_finish_that_committed_first_wins",
    "test_wait_ends_with_the_jobs",
    "test_a_host_that_lost_its_session_performs_no_duty_after_reconnecting",
    "test_a_role_that_may_not_create_schemas_can_use_one_that_was_made_for_it",
    "test_a_stream_keeps_one_copy_open_while_the_iterator_goes_on",
    "test_a_finish_that_waits_for_a_new_follower_hears_of_it",
    "test_a_notification_that_arrived_with_an_answer_is_handled_before_the_wait",
    "test_notifications_are_handled_while_it_waits_and_a_lost_session_ends_the_wait",
    "test_sessions_that_cannot_see_each_other_miss_nothing",
    "test_row_88_old_code_on_a_new_schema_is_refused_with_5_and_touches_nothing",
    "test_read_committed_even_where_the_database_says_serializable",
    "test_every_wait_is_bounded_and_nothing_of_it_can_be_reset",
    "test_options_of_the_dsn_are_kept_but_our_own_take_precedence",
    "test_the_same_on_an_event_loop",
    "test_a_statement_that_takes_too_long_is_ended",
    "test_a_server_that_is_read_only_is_not_taken",
    "test_the_second_of_two_claims_at_once_sees_what_the_first_one_took",
    "test_the_job_has_what_the_task_and_the_schedule_say",
    "test_a_healthy_database_has_no_finding",
    "test_the_command",
    "test_nothing_is_written",
    "test_few_connections_are_left",
    "test_a_server_that_does_not_answer_in_time_is_a_finding_and_the_next_check_goes_on",
    "test_a_role_with_few_rights_learns_what_it_cannot_see",
    "test_a_transaction_that_pins_the_horizon_is_named",
    "test_it_is_prepared_after_as_many_uses_as_the_connection_says",
    "test_a_session_that_the_server_ended_is_not_quiet",
    "test_a_session_that_ends_under_a_statement_says_so",
    "test_many_are_locked_in_the_order_of_their_ids_so_that_two_verbs_cannot_deadlock",
    "test_a_job_that_is_requeued_meanwhile_is_still_cancelled",
    "test_one_that_ends_meanwhile_keeps_its_end_and_holds_up_no_other",
    "test_a_finish_during_the_linking_of_a_child_releases_the_child",
    "test_forged_notifications_do_not_end_a_wait",
    "test_a_session_that_holds_the_leaders_lock_and_does_not_lead_is_named",
    "test_a_second_enqueue_waits_for_the_transaction_of_the_first",
    "test_without_a_key_the_table_is_not_touched",
    "test_keys_are_found_by_index_whatever_the_statistics_say",
}
#: Reasons of skips that a program on this machine would have prevented.
MISSING_TOOL = re.compile(r"not installed|neither installed|apt-get install")
RUN = pytest.StashKey[str]()
ROOT = pytest.StashKey[Path]()
ALIVE = pytest.StashKey[int]()
WATCHDOG = pytest.StashKey[Watchdog]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("postgres")
    group.addoption(
        "--pg-bindir", type=Path, help="run the test server with the Postgres programs in this directory"
    )
    group.addoption(
        "--pooler", action="store_true", help="put PgBouncer (transaction mode) in front of the server"
    )
    group.addoption("--dsn", help="use this server (a role that may create databases) instead of an own one")


def pytest_configure(config: pytest.Config) -> None:
    """One directory for the whole run, gone at its end."""
    allow_real_database()  # our tests enqueue for real; the tests of the guard forbid it again
    run = uuid.uuid4().hex[:12]
    root, alive = leftover_processes.make(_fast_directory())
    config.stash[RUN], config.stash[ROOT], config.stash[ALIVE] = run, root, alive
    leftover_processes.sweep(root.parent)
    os.environ[leftover_processes.MARK] = run
    config.stash[WATCHDOG] = Watchdog(run, str(root), leftover_processes.MARK)
    for variable in [
        name for name in os.environ if re.fullmatch(r"PG[A-Z]+|DATABASE_URL|PGWORKERS_\w+", name)
    ]:
        if variable != leftover_processes.MARK:  # the tests decide which Postgres is used, not who runs them
            del os.environ[variable]
    if config.option.basetemp is None:
        config.option.basetemp = root / "pytest"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--pooler"):
        for item in items:
            name = getattr(item, "originalname", item.name)
            if BOUNCER is None:
                item.add_marker(pytest.mark.skip(reason=MISSING))
            elif name in NOT_POOLED or item.path.name in NOT_POOLED_FILES:
                item.add_marker(pytest.mark.skip(reason="NOT TESTED through a pooler: it looks at sessions"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is skipped because a program is missing is red: scripts/setup dev installs them."""
    report = yield
    if report.skipped and os.environ.get("CI") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if MISSING_TOOL.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: {reason}: in CI a missing program is an error"
    return report


def _fast_directory() -> str | None:
    """Memory, if there is enough: making a database is a thousand small files. Else where TMPDIR says."""
    memory = "/dev/shm"
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK):
        return None
    found = os.statvfs(memory)
    roomy = found.f_bavail * found.f_frsize >= 2 << 30
    return memory if roomy and not found.f_flag & os.ST_NOEXEC else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if ROOT in config.stash:
        shutil.rmtree(config.stash[ROOT])
        os.close(config.stash[ALIVE])
        config.stash[WATCHDOG].dismiss()


@pytest.fixture(scope="session")
def run_id(pytestconfig: pytest.Config) -> str:
    """The value of PGWORKERS_TEST_RUN in the environment of every process of this run."""
    return pytestconfig.stash[RUN]


@pytest.fixture(scope="session")
def run_root(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.stash[ROOT]


@pytest.fixture(scope="session")
def bindir(pytestconfig: pytest.Config) -> Path | None:
    found: Path | None = pytestconfig.getoption("--pg-bindir")
    return found


@pytest.fixture(scope="session")
def schema() -> str:
    return "pgworkers"


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config, run_id: str, run_root: Path, bindir: Path | None) -> Iterator[Server]:
    """The server of this run: `create()` makes an empty database, `dsn(name)` is its address."""
    with run_server(
        run_root / leftover_processes.RUN_SERVER,
        run_id,
        bindir,
        pytestconfig.getoption("--dsn"),
        pooler=pytestconfig.getoption("--pooler"),
    ) as found:
        yield found


@pytest.fixture(scope="session")
def template(server: Server, schema: str) -> Iterator[str]:
    """A migrated database; tests get clones of it."""
    name = server.create()
    migrated(server.dsn(name), schema)
    yield name
    server.drop(name)


@pytest.fixture
def dsn(server: Server, template: str) -> Iterator[str]:
    """The address of a migrated database of this test's own. A connection left open fails the test."""
    name = server.create(template=template)
    yield server.dsn(name)
    left = server.connections(name)
    server.drop(name)
    assert not left, f"the test left connections open: {left}"


@pytest.fixture
def empty_dsn(server: Server) -> Iterator[str]:
    """The address of an empty database of this test's own, for tests of migrations."""
    name = server.create()
    yield server.dsn(name)
    left = server.connections(name)
    server.drop(name)
    assert not left, f"the test left connections open: {left}"


@pytest.fixture
def db(dsn: str, pytestconfig: pytest.Config) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to the test's database."""
    with psycopg.connect(dsn, autocommit=True, application_name="test") as conn:
        if pytestconfig.getoption("--pooler"):
            conn.prepare_threshold = (
                None  # as our own connections: the next statement may meet another session
            )
        yield conn


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, run_root: Path) -> Iterator[Path]:
    """A directory of the test's own that other accounts may enter, as the server's must."""
    name = re.sub(r"\W", "_", request.node.name)[:24]
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=run_root))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def own_server(tmp_path: Path, bindir: Path | None, schema: str) -> Iterator[OwnServer]:
    """A migrated server that the test may crash and start again; `own_server.dsn` stays the same."""
    own = OwnServer(tmp_path / "own", bindir)
    try:
        migrated(own.dsn, schema)
        yield own
    finally:
        own.close()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, run_id: str, run_root: Path) -> Iterator[None]:
    """Fail a test of processes that leaves one behind."""
    if not WATCHED & set(request.path.parent.parts):
        yield
        return
    before = set(leftover_processes.marked(run_id, run_root))
    yield
    left = leftover_processes.await_none(run_id, run_root, before)
    leftover_processes.end(list(left))
    assert not left, f"the test left processes behind: {left}"
