"""Processes that a test left behind, found by the mark that every child of this pytest run carries."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from pgworkers.embedded.server import EmbeddedServer
from pgworkers.errors import DatabaseUnreachable

MARK = "PGWORKERS_TEST_RUN"
TREE_MARK = "TREE_MARK"  # of the processes of one master
RUN_SERVER = "server"  # the directory of the server that all tests share
LOGIN_SERVER = "server-{}"  # of the servers that have the roles and logins of tests/security
STEP = 0.02
PATIENCE = 30.0  # how long a process that is just ending may still be seen
SPARED: set[int] = set()  # what the run itself has started
SPARED_TREES: set[str] = set()  # the marks of hosts that serve several tests


def look(pid: int, file: str) -> bytes:
    """/proc/PID/file; empty if the process has ended or may not be read. No pathlib: this runs very often."""
    try:
        descriptor = os.open(f"/proc/{pid}/{file}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def with_variable(name: str, value: str) -> list[int]:
    """Every process that has this variable in its environment."""
    wanted = f"\0{name}={value}\0".encode()
    return [pid for pid in processes() if wanted in b"\0%b\0" % look(pid, "environ")]


def marked(run: str, root: Path) -> dict[int, str]:
    """Living processes with the mark in their environment, and servers whose data lies below `root`."""
    found = {}
    wanted, below = f"\0{MARK}={run}\0".encode(), b"%b/" % os.fsencode(root)
    servers = (RUN_SERVER, *map(LOGIN_SERVER.format, ("oldest", "newest")))
    of_the_run = [
        b"%b/" % os.fsencode(root / name) for name in servers
    ]  # they belong to the run, not to a test
    trees = [f"\0{TREE_MARK}={mark}\0".encode() for mark in SPARED_TREES]
    for pid in processes():
        command = look(pid, "cmdline")
        if pid == os.getpid() or pid in SPARED or not command or any(home in command for home in of_the_run):
            continue
        environ = b"\0%b\0" % look(pid, "environ")
        if any(tree in environ for tree in trees):
            continue
        is_server = b"postgres\0" in command and below in command
        if is_server or wanted in environ:
            found[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def await_none(run: str, root: Path, before: set[int]) -> dict[int, str]:
    """Processes that a test left, after a short wait; those that existed before it do not count."""
    give_up = time.monotonic() + PATIENCE
    while True:
        left = {pid: command for pid, command in marked(run, root).items() if pid not in before}
        if not left or time.monotonic() > give_up:
            return left
        time.sleep(STEP)


def end(pids: list[int]) -> None:
    """End what a failed test left, so that the next one starts clean."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def make(directory: str | None) -> tuple[Path, int]:
    """A directory for this run, marked as that of a living one for as long as the descriptor is open."""
    while True:
        root = Path(tempfile.mkdtemp(prefix="pgw-", dir=directory))
        root.chmod(0o711)  # the server's account must be able to enter it
        descriptor = os.open(root / "run.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (root / "run.lock").exists():
            return root, descriptor
        os.close(descriptor)  # another run, just starting, took it for a dead one's before it was locked


def sweep(directory: Path) -> None:
    """Remove what runs that were killed left in a directory of temporary things: server, poolers and files."""
    for root in directory.glob("pgw-*"):
        remove(root)


def remove(root: Path) -> bool:
    """End the servers and poolers of a dead run and delete its files. False if it is alive or another user's."""
    try:
        with (root / "run.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for home in root.rglob("users.lock"):
                EmbeddedServer(home.parent).stop(force=True)
            end(_poolers(root))
            shutil.rmtree(root)
    except FileNotFoundError:
        return not root.exists()  # else it is just being made
    except (OSError, DatabaseUnreachable):
        return False
    return True


def _poolers(root: Path) -> list[int]:
    """Every PgBouncer whose configuration lies below `root`."""
    found = []
    for pid in processes():
        words = look(pid, "cmdline").split(b"\0")
        if words[0].endswith(b"pgbouncer") and any(w.startswith(b"%b/" % os.fsencode(root)) for w in words):
            found.append(pid)
    return found
