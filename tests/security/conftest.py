"""Logins that attack: a database with the roles as `pgworkers migrate roles` prints them, and a login for each role.

    stranger   has CONNECT and nothing else      web       member of pgworkers_enqueue
    viewer     member of pgworkers_viewer        auditor   member of pgworkers_payload
    operator   member of pgworkers_operator
    worker     member of pgworkers_worker        owner     member of pgworkers_owner

How to write a test:

- Ask for a login by its name and get an autocommit connection: `def test_x(stranger, web): stranger.execute(...)`.
  `admin` is a superuser's connection, direct, to look at the tables and to prepare them.
- Ask for `login_dsn` to get an address: `login_dsn("web")`. It goes the same way as the connections.
- Every such test runs four times: on the oldest and on the newest Postgres of this machine (fixture `age`), direct
  and through PgBouncer in transaction mode (fixture `way`). Where one of the two does not matter, say so with a mark
  from `support.logins`: `@DIRECT_ONLY`, `@POOLED_ONLY`, `@NEWEST_ONLY`, `@OLDEST_ONLY` (a test with such a mark names
  the fixture, `way` or `age`, among its arguments). A test that uses only `admin` does not depend on `way`.
- Ask for `database` to open more sessions: `database.connect("web", way)`; close what you open.
- Ask for `running_host` to play against a living host: `pgworkers run` as the login `worker`, direct, with the handlers
  of `support/misbehaving_app.py` and two workers in the queue `default`. It is a `support.cluster.Master`. All tests of
  a file that ask for it share one host and its database (one for each `age`), so they must let it live, and count only
  jobs of their own; `HOST_OPTIONS` of the file are arguments of its start. The audit of the ledger follows the last.
- Ask for `cluster` without `running_host` to start hosts of the test's own, on a database of its own:
  `cluster.start(dsn=database.dsn("worker"), ...)`. `cluster.enqueue("gate")`, `cluster.until(job, "succeeded")`,
  `cluster.open_gate()` and `cluster.declare(...)` are as in tests/tree, and so is the audit.

A database is a clone that belongs to one test, unless it asks for `running_host`. The servers are started once for each
pytest process, when a test first needs them. Many values or statements that only the database answers are one test, not
one test each: the clone and its sessions cost more than the statement (tests/README.md).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.cluster import Cluster, Master
from support.cluster_fixtures import audited_cluster, cluster_with_excuses, excuses_of
from support.logins import LoginDatabase, LoginServer, LoginServers
from support.pooler import require_bouncer
from support.shared_host import SharedHost


@pytest.fixture(scope="session")
def login_servers(run_id: str, run_root: Path) -> Iterator[LoginServers]:
    servers = LoginServers(run_root, run_id)
    yield servers
    servers.close()


@pytest.fixture(params=["oldest", "newest"], scope="module")
def age(request: pytest.FixtureRequest) -> str:
    """Which Postgres: the oldest or the newest of this machine."""
    chosen: str = request.param
    return chosen


@pytest.fixture(params=["direct", "pooled"])
def way(request: pytest.FixtureRequest) -> str:
    """How the logins reach the server: direct, or through PgBouncer in transaction mode."""
    if request.param == "pooled":
        require_bouncer()
    chosen: str = request.param
    return chosen


@contextmanager
def cloned(host: LoginServer) -> Iterator[LoginDatabase]:
    """A migrated database with the roles. A direct connection left open is an error."""
    found = LoginDatabase(host, host.server.create(template=host.template))
    try:
        yield found
    finally:
        host.disconnect_pooler(found.name)
        left = host.server.connections(found.name)
        host.server.drop(found.name)
    assert not left, f"the test left connections open: {left}"


@pytest.fixture(scope="module")
def shared_host(
    request: pytest.FixtureRequest, login_servers: LoginServers, age: str, run_root: Path
) -> Iterator[SharedHost]:
    options: dict[str, Any] = getattr(request.module, "HOST_OPTIONS", {})
    excuses: dict[str, str] = {}
    directory = Path(tempfile.mkdtemp(prefix="shared-", dir=run_root))
    directory.chmod(0o755)
    with (
        cloned(login_servers[age]) as database,
        cluster_with_excuses(excuses, database.admin, directory) as cluster,
    ):
        yield SharedHost(database, cluster, excuses, options)
    shutil.rmtree(directory)


@pytest.fixture
def database(
    request: pytest.FixtureRequest, login_servers: LoginServers, age: str
) -> Iterator[LoginDatabase]:
    """The database of this test, or of the host that it shares."""
    if "running_host" in request.fixturenames:
        shared: SharedHost = request.getfixturevalue("shared_host")
        yield shared.database
        return
    with cloned(login_servers[age]) as found:
        yield found


@pytest.fixture
def login_dsn(database: LoginDatabase, way: str) -> Callable[[str], str]:
    """The address of the database for a login."""
    return lambda login: database.dsn(login, way)


@pytest.fixture
def admin(database: LoginDatabase) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's session, always direct."""
    with psycopg.connect(database.admin, autocommit=True, application_name="test admin") as conn:
        yield conn


def session_fixture(login: str) -> Any:
    """A fixture with an autocommit session of a login."""

    @pytest.fixture(name=login)
    def session(database: LoginDatabase, way: str) -> Iterator[psycopg.Connection[Any]]:
        with database.connect(login, way) as conn:
            yield conn

    return session


stranger = session_fixture("stranger")
web = session_fixture("web")
viewer = session_fixture("viewer")
auditor = session_fixture("auditor")
operator = session_fixture("operator")
worker = session_fixture("worker")
owner = session_fixture("owner")


@pytest.fixture
def cluster(request: pytest.FixtureRequest, database: LoginDatabase, tmp_path: Path) -> Iterator[Cluster]:
    """Hosts on the database; `cluster.db` is a superuser's session. The audit follows when they have left."""
    if "running_host" in request.fixturenames:
        shared: SharedHost = request.getfixturevalue("shared_host")
        yield shared.cluster
        return
    with audited_cluster(request, database.admin, tmp_path) as cluster:
        yield cluster


@pytest.fixture
def running_host(request: pytest.FixtureRequest, shared_host: SharedHost) -> Iterator[Master]:
    """A living `pgworkers run` as the login `worker`, which the tests of a file share."""
    shared_host.excuses.update(excuses_of(request.node))
    yield shared_host.living()
    shared_host.settle()
