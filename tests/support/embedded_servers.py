"""Embedded servers for tests of the embedded server: in this process and as users in other processes."""

from __future__ import annotations

import os
import pwd
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import embedded_user

from pgworkers.embedded.server import EmbeddedServer

FAST = {"fsync": "off", "shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap"}
REPOSITORY = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: becoming another user needs root")


class EmbeddedServers:
    """Makes servers below one directory and stops what a failing test left running."""

    def __init__(self, root: Path, bindir: Path | None) -> None:
        self.root = root
        self.home = root / "home"
        self.stores = (root / "store",)
        self.bindir = bindir
        self.messages: list[str] = []
        self._made: list[EmbeddedServer] = []

    def server(self, home: Path | None = None, *, bindir: Path | None = None) -> EmbeddedServer:
        server = EmbeddedServer(
            home or self.home,
            options=FAST,
            bindir=bindir or self.bindir,
            on_message=self.messages.append,
            stores=self.stores,
        )
        self._made.append(server)
        return server

    def close(self) -> None:
        for server in self._made:
            server.release()
            server.stop(force=True)

    @contextmanager
    def user(
        self, home: Path | None = None, *, account: str | None = None, within: tuple[str, ...] = ()
    ) -> Iterator[ServerUser]:
        """Another process that uses a server, as another account or run by another program."""
        user = ServerUser(home or self.home, self.stores[0], self.bindir, account, within)
        try:
            yield user
        finally:
            user.close()


class ServerUser:
    """Another process that uses the server of a home."""

    def __init__(
        self, home: Path, store: Path, bindir: Path | None, account: str | None, within: tuple[str, ...]
    ) -> None:
        environ = {**os.environ}
        python = sys.executable
        if account:
            python = python_for(account)
            environ["PYTHONPATH"] = _readable_code()
        self._process = subprocess.Popen(
            [*within, python, str(embedded_user.__file__), str(home), str(store), str(bindir or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd="/",
            user=account,
            group=pwd.getpwnam(account).pw_gid if account else None,
            extra_groups=[] if account else None,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def server_pid(self) -> int:
        """Wait until the user has the server; its process id."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip().isdigit(), f"the user did not get a server: {line!r}"
        return int(line)

    def leave(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.stdout.readline() == "released\n"
        assert self._process.wait() == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def python_for(account: str) -> str:
    """An interpreter like ours that the account can run; ours may lie in a home directory it cannot enter."""
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/local/bin/python{wanted}", f"/usr/bin/python{wanted}"):
        try:
            done = subprocess.run(
                [python, "-c", "import sys, support.embedded_user; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": _readable_code()},
                user=account,
                cwd="/",
                check=False,
            )
        except OSError:
            continue
        if done.stdout.strip() == wanted:
            return python
    pytest.skip(
        f"NOT TESTED: no Python {wanted} that {account} can run, or {REPOSITORY} is closed to {account}"
    )


def _readable_code() -> str:
    """The module path of an interpreter that does not know our virtual environment."""
    return os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests"), *site.getsitepackages()])
