"""The embedded server runs as long as a process uses it, whichever process started it and however its users end."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from support.embedded_servers import EmbeddedServers

from pgworkers.embedded import cluster as sessions
from pgworkers.embedded import process
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.errors import DatabaseUnreachable, PgworkersError


@pytest.fixture(scope="session")
def made(run_root: Path, bindir: Path | None) -> Path:
    """A home with data in it: copying one is quicker than initdb, which the other tests run often enough."""
    servers = EmbeddedServers(run_root / "made", bindir)
    servers.server().acquire()
    servers.close()
    return servers.home


@pytest.fixture
def servers(tmp_path: Path, bindir: Path | None, made: Path) -> Iterator[EmbeddedServers]:
    servers = EmbeddedServers(tmp_path, bindir)
    subprocess.run(["cp", "-a", made, servers.home], check=True)
    yield servers
    servers.close()


def answer(dsn: str, question: str) -> str:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(question.encode()).fetchone()
    assert row is not None
    return str(row[0])


class Stranger:
    """A program that has only the address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def asked(self, question: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question};\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def psql(server: EmbeddedServer, dsn: str) -> Iterator[Stranger]:
    program = server.binaries().program("psql")
    found = program if program.is_file() else shutil.which("psql")
    with subprocess.Popen(
        [found or "psql", "-XAtq", dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        stranger = Stranger(process)
        assert stranger.asked("SELECT 1") == "1"
        yield stranger


def test_first_user_starts_it_and_last_one_stops_it(servers: EmbeddedServers) -> None:
    server = servers.server()
    dsn = server.acquire()
    assert answer(dsn, "SELECT current_database()") == "pgworkers"
    with servers.user() as other:
        pid = other.server_pid()
        assert server.status().pid == pid
        assert {other.pid, os.getpid()} <= set(server.status().user_pids)
        server.release()
        assert server.status().pid == pid  # the other one still uses it
        other.leave()
    assert server.status().pid is None
    assert not Path(f"/proc/{pid}/cwd").exists()


def test_acquire_and_release_twice_are_once(servers: EmbeddedServers) -> None:
    server = servers.server()
    assert server.acquire() == server.acquire()
    server.release()
    assert server.status().pid is None
    server.release()


def test_killed_user_is_no_longer_counted(servers: EmbeddedServers) -> None:
    server = servers.server()
    with servers.user() as killed:
        pid = killed.server_pid()
        server.acquire()
        killed.kill()
    assert server.status().pid == pid
    server.release()
    assert server.status().pid is None


def test_server_whose_users_were_all_killed_is_used_again(servers: EmbeddedServers) -> None:
    with servers.user() as one, servers.user() as two:
        pid = one.server_pid()
        assert two.server_pid() == pid
        one.kill()
        two.kill()
    server = servers.server()
    assert server.status().pid == pid
    server.acquire()
    assert server.status().pid == pid
    server.release()
    assert server.status().pid is None


def test_eight_at_once_start_one_server(servers: EmbeddedServers) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(servers.user()) for _ in range(8)]
        assert len({user.server_pid() for user in users}) == 1
        for user in users[:7]:
            user.leave()
        assert servers.server().status().pid is not None
        users[7].leave()
    assert servers.server().status().pid is None


def test_fork_of_a_user_cannot_release_for_it(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.acquire()
    child = os.fork()
    if child == 0:
        server.release()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert server.status().pid is not None
    server.release()
    assert server.status().pid is None


def test_fork_that_outlives_the_user_does_not_keep_it(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.acquire()
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        server.release()
        assert server.status().pid is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_server_has_its_own_session_and_none_of_our_descriptors(servers: EmbeddedServers) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    server = servers.server()
    server.acquire()
    os.close(writer)
    pid = server.status().pid
    assert pid is not None
    try:
        assert select.select([reader], [], [], 30)[0], "the server holds our pipe open"
        assert os.getsid(pid) != os.getsid(0)
        held = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it closed it meanwhile
                held.add(os.readlink(link))
        assert not [name for name in held if name.endswith(".lock")]
    finally:
        os.close(reader)


def test_acquire_again_after_a_crash_starts_it_again(servers: EmbeddedServers) -> None:
    server = servers.server()
    dsn = server.acquire()
    with psycopg.connect(dsn) as conn:
        conn.execute("CREATE TABLE kept (n int)")
    before = server.status().pid
    assert before is not None
    assert process.stop(server.status().data, is_fast=False)
    assert server.status().pid is None
    assert server.acquire() == dsn
    assert server.status().pid not in (None, before)
    assert answer(dsn, "SELECT count(*) FROM kept") == "0"


def test_server_killed_under_a_busy_backend_comes_back(servers: EmbeddedServers) -> None:
    """Orphaned backends hold the shared memory until they notice; a start in between has to wait for them."""
    server = servers.server()
    dsn = server.acquire()
    pid = server.status().pid
    assert pid is not None
    conn = psycopg.connect(dsn, autocommit=True)
    try:
        conn.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 5000000)")
        with os.fdopen(os.pidfd_open(pid)) as gone:
            os.kill(pid, signal.SIGKILL)
            assert select.select([gone], [], [], 60)[0]
        assert server.acquire() == dsn
        assert answer(dsn, "SELECT 1") == "1"
    finally:
        conn.close()


def test_stop_is_refused_while_it_is_used_and_names_the_user(servers: EmbeddedServers) -> None:
    server = servers.server()
    with servers.user() as user:
        pid = user.server_pid()
        with pytest.raises(PgworkersError, match=rf"in use by process {user.pid}; it was not stopped"):
            server.stop()
        with pytest.raises(PgworkersError, match="nothing was deleted"):
            server.reset()
        assert server.status().pid == pid
        assert server.stop(force=True)
        assert server.status().pid is None
        assert not server.stop()
        user.kill()


def test_it_is_not_stopped_while_other_sessions_use_its_address(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.server()
    dsn = server.acquire()
    pid = server.status().pid
    with psql(server, dsn) as stranger, monkeypatch.context() as quick:
        quick.setattr(sessions, "SESSION_END_TIMEOUT_SECONDS", 0.0)  # this one does not leave
        server.release()
        assert server.status().pid == pid
        assert "keeps running: other sessions are connected (1 session)" in servers.messages[-1]
        with pytest.raises(PgworkersError, match=r"in use by 1 session connected to its address; it was not"):
            server.stop()
        with pytest.raises(PgworkersError, match="nothing was deleted"):
            server.reset()
        reader = servers.server()  # as a command is that only reads
        reader.acquire()
        reader.release()
        assert stranger.asked("SELECT 7") == "7"
    server.acquire()
    server.release()
    assert server.status().pid is None, "they have left, and so does the next last user"


def test_a_session_of_the_last_users_own_does_not_keep_it(servers: EmbeddedServers) -> None:
    server = servers.server()
    with closing(psycopg.connect(server.acquire())):
        server.release()
        assert server.status().pid is None


def test_stop_by_force_ends_the_sessions_of_others(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.start()
    with psql(server, server.status().dsn or ""):
        assert server.stop(force=True)
    assert server.status().pid is None


def test_started_by_hand_it_stays_until_stopped_by_hand(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.start()
    pid = server.status().pid
    assert server.status().is_kept_running
    server.acquire()
    server.release()
    assert server.status().pid == pid
    assert server.stop()
    server.acquire()
    assert not server.status().is_kept_running
    server.release()
    assert server.status().pid is None


def test_reset_deletes_the_data(servers: EmbeddedServers) -> None:
    server = servers.server()
    with psycopg.connect(server.acquire()) as conn:
        conn.execute("CREATE TABLE gone (n int)")
    with pytest.raises(PgworkersError, match="in use"):
        server.reset()
    server.release()
    server.reset()
    assert not server.status().has_data
    assert answer(server.acquire(), "SELECT to_regclass('gone') IS NULL") == "True"


def test_nothing_runs_after_a_start_that_failed(servers: EmbeddedServers) -> None:
    server = EmbeddedServer(
        servers.home, options={"work_mem": "much"}, bindir=servers.bindir, stores=servers.stores
    )
    with pytest.raises(DatabaseUnreachable, match=r'invalid value for parameter "work_mem"'):
        server.acquire()
    assert server.status().pid is None
    assert server.status().user_pids == []
    servers.server().acquire()  # the data is whole and the locks are free


def test_interrupted_start_leaves_no_server(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.server()

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "pgworkers.embedded.locks.acquire_users_lock", interrupt
    )  # the moment after the start
    with pytest.raises(KeyboardInterrupt):
        server.acquire()
    assert server.status().pid is None
    assert servers.messages[-1].startswith("starting the embedded Postgres")
