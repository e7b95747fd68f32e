"""Processes that a test left behind, found by the mark that every child of this pytest run carries."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from pgworkers.errors import DatabaseUnreachable
from pgworkers.postgres.embedded import EmbeddedServer

MARK = "PGWORKERS_TEST_RUN"
RUN_SERVER = "server"  # the directory of the server that all tests share
STEP = 0.02
PATIENCE = 30.0  # how long a process that is just ending may still be seen


def marked(run: str, root: Path) -> dict[int, str]:
    """Living processes with the mark in their environment, and servers whose data lies below `root`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environ = (entry / "environ").read_bytes() if _readable(entry / "environ") else b""
        except OSError:
            continue  # it ended meanwhile
        is_server = b"postgres\0" in command and b"%b/" % os.fsencode(root) in command
        if b"%b/" % os.fsencode(root / RUN_SERVER) in command:
            continue  # it belongs to the run, not to a test
        if command and (f"{MARK}={run}".encode() in environ.split(b"\0") or is_server):
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def await_none(run: str, root: Path, before: set[int]) -> dict[int, str]:
    """What is left of a test after a moment of patience; those that were there before it do not count."""
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
        try:
            with (root / "run.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for home in root.rglob("users.lock"):
                    EmbeddedServer(home.parent).stop(force=True)
                end(_poolers(root))
                shutil.rmtree(root)
        except (OSError, DatabaseUnreachable):
            continue  # it is alive, just being made, or somebody else's


def _poolers(root: Path) -> list[int]:
    """Every PgBouncer whose configuration lies below `root`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue  # it ended meanwhile
        if (
            words
            and words[0].endswith(b"pgbouncer")
            and any(w.startswith(b"%b/" % os.fsencode(root)) for w in words)
        ):
            found.append(int(entry.name))
    return found


def _readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except PermissionError:
        return False
