"""`pgworkers pg …` as a person types it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.command import Command
from support.embedded_servers import EmbeddedServers

NOT_RUNNING = 3


@pytest.fixture
def servers(tmp_path: Path, bindir: Path | None) -> Iterator[EmbeddedServers]:
    servers = EmbeddedServers(tmp_path, bindir)
    servers.home = tmp_path / ".pgworkers"
    yield servers
    servers.close()


@pytest.fixture
def pgworkers(servers: EmbeddedServers) -> Command:
    servers.server()  # so that it is stopped whatever happens
    return Command(servers.root)


def test_start_status_psql_stop_reset(pgworkers: Command, servers: EmbeddedServers) -> None:
    assert "none yet" in pgworkers("pg", "status", code=NOT_RUNNING).out
    assert not servers.home.exists()

    started = pgworkers("pg", "start")
    assert "starting the embedded Postgres" in started.err
    with psycopg.connect(started.out.strip()) as conn:
        conn.execute("CREATE TABLE there (n int)")
    assert pgworkers("pg", "start", "-o", "json").json() == {"dsn": started.out.strip()}
    found = pgworkers("pg", "status", "-o", "json").json()
    assert found["dsn"] == started.out.strip()
    assert (found["ready"], found["kept"], found["users"]) == (True, True, [])

    assert pgworkers("pg", "psql", "-At", "-c", "SELECT count(*) FROM there").out == "0\n"
    assert pgworkers("pg", "psql", "-At", given="SELECT 7").out == "7\n"
    pgworkers("pg", "psql", "-c", "SELECT nonsense", code=1)
    assert "running, until pgworkers pg stop" in pgworkers("pg", "status").out

    assert "stopped" in pgworkers("pg", "stop").err
    assert "not running" in pgworkers("pg", "stop").err
    assert "nothing was deleted" in pgworkers.fails("pg", "reset", code=2)
    assert pgworkers("pg", "psql", "-At", "-c", "SELECT count(*) FROM there").out == "0\n"
    pgworkers("pg", "status", code=NOT_RUNNING)  # psql was the last user
    pgworkers("pg", "reset", "--yes")
    assert "nothing to delete" in pgworkers("pg", "reset", "--yes").err


def test_stop_names_the_users(pgworkers: Command, servers: EmbeddedServers) -> None:
    with servers.user() as user:
        user.server_pid()
        assert f"in use by process {user.pid}" in pgworkers.fails("pg", "stop", code=1)
        assert f"used by  {user.pid} (python" in pgworkers("pg", "status").out
        pgworkers("pg", "stop", "--force")
        user.kill()
    pgworkers("pg", "status", code=NOT_RUNNING)


def test_home_is_a_setting(pgworkers: Command, servers: EmbeddedServers) -> None:
    elsewhere = servers.root / "there"
    servers.server(elsewhere)
    pgworkers("pg", "start", PGWORKERS_EMBEDDED_DIRECTORY=str(elsewhere))
    assert (elsewhere / "data").is_dir()
    assert not servers.home.exists()
    pgworkers("pg", "stop", PGWORKERS_EMBEDDED_DIRECTORY=str(elsewhere))


def test_directory_that_cannot_be_used(pgworkers: Command) -> None:
    error = pgworkers.fails("pg", "start", code=4, PGWORKERS_EMBEDDED_DIRECTORY="/proc/pgworkers")
    assert "cannot be used" in error
    assert "PGWORKERS_EMBEDDED_DIRECTORY" in error


@pytest.mark.parametrize(
    "words", [["jobs", "list"], ["hosts"], ["pg", "status"], ["pg", "stop"], ["pg", "reset", "--yes"]]
)
@pytest.mark.parametrize("home", ["/dev/null", "/dev/null/below"])
def test_an_impossible_home_is_refused_by_read_only_commands(
    pgworkers: Command, words: list[str], home: str
) -> None:
    error = pgworkers.fails(*words, code=4, PGWORKERS_EMBEDDED_DIRECTORY=home)
    assert f"{home} cannot be used (Not a directory)" in error
    assert "PGWORKERS_EMBEDDED_DIRECTORY" in error


@pytest.mark.parametrize("words", [["--dsn", "", "jobs", "list"], ["jobs", "list", "--dsn", " "]])
def test_an_empty_dsn_does_not_mean_the_embedded_server(
    pgworkers: Command, servers: EmbeddedServers, words: list[str]
) -> None:
    assert "--dsn is empty" in pgworkers.fails(*words, code=2)
    assert not servers.home.exists()
