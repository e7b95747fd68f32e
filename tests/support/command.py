"""The real command line as a subprocess: what a person would type, and everything that comes back."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import command_server, leftover_processes
from support.command_server import CODE

LIMIT = 60.0


@dataclass(frozen=True)
class CommandResult:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[str]:
        return self.out.splitlines()


class Command:
    """`pgworkers …` in a directory, with an environment that names no database unless the test does."""

    def __init__(self, cwd: Path, **variables: str) -> None:
        self.cwd = cwd
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PG", "DATABASE_URL"))
        }
        marks = {name: value for name, value in os.environ.items() if name.startswith("PGWORKERS_TEST")}
        self.environ = {**kept, **marks, "COLUMNS": "100", **variables}

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "pgworkers", *words]

    def __call__(
        self, *words: str, given: str | bytes = b"", code: int | None = 0, **variables: str
    ) -> CommandResult:
        """Run to the end; `code` is the exit code that is expected, None for any."""
        given = given.encode() if isinstance(given, str) else given
        ended, out, err = self.start(words, given, {**self.environ, **variables})
        said = CommandResult(ended, out.decode(), err.decode())
        assert code is None or said.code == code, f"{words} ended with {said.code}: {said.out}{said.err}"
        return said

    def start(
        self, words: Sequence[str], given: bytes, environ: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            self.argv(*words),
            cwd=self.cwd,
            env=environ,
            input=given,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def fails(self, *words: str, code: int, given: str | bytes = b"", **variables: str) -> str:
        """Run to a failure and give its one line: exactly one, and no traceback."""
        said = self(*words, given=given, code=code, **variables)
        lines = [line for line in said.err.splitlines() if line.startswith("pgworkers: error: ")]
        assert len(lines) == 1, said.err
        assert "Traceback" not in said.err + said.out
        return lines[0].removeprefix("pgworkers: error: ")


class CommandServerClient:
    """The side of the tests: one for each pytest process, started when it is first asked."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, command_server.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # not the terminal in which the tests run
                pass_fds=[theirs.fileno()],
            )
        leftover_processes.SPARED.add(self._process.pid)
        atexit.register(self.close)

    def run(
        self,
        words: Sequence[str],
        *,
        cwd: str,
        environ: Mapping[str, str],
        given: bytes,
        limit: float,
    ) -> tuple[int, bytes, bytes]:
        """Exit code (negative: the signal), stdout, stderr."""
        files = [os.memfd_create(name) for name in ("in", "out", "err")]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            os.write(files[0], given)
            os.lseek(files[0], 0, os.SEEK_SET)
            order = json.dumps([list(words), cwd, dict(environ)]).encode()
            with theirs:
                socket.send_fds(self._socket, [order], [*files, theirs.fileno()])
            ours.settimeout(limit)
            pid = CODE.unpack(ours.recv(CODE.size))[0]
            try:
                code = CODE.unpack(ours.recv(CODE.size))[0]
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), limit) from None
            return code, _read_all(files[1]), _read_all(files[2])
        finally:
            ours.close()
            for file in files:
                os.close(file)

    def close(self) -> None:
        self._socket.close()  # it leaves
        self._process.communicate(timeout=30)


def _read_all(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


class ForkedCommand(Command):
    """The same, without the time that Python and the imports take: see `nursery`."""

    def start(
        self, words: Sequence[str], given: bytes, environ: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        return _command_server().run(words, cwd=str(self.cwd), environ=environ, given=given, limit=LIMIT)


class InProcessCommand(Command):
    """The same in this very process, where a command costs what it does: for those that leave nothing behind."""

    def start(
        self, words: Sequence[str], given: bytes, environ: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        from pgworkers.cli.error_report import run_command_line

        # Like the streams of a process, but bytes that are not text are an error of the test.
        files = [io.TextIOWrapper(io.BytesIO(data), "utf-8", newline="\n") for data in (given, b"", b"")]
        before, cwd, stdin, path = dict(os.environ), os.getcwd(), sys.stdin, [*sys.path]
        try:
            os.chdir(self.cwd)
            _replace_environ(environ)
            sys.stdin = files[0]
            with contextlib.redirect_stdout(files[1]), contextlib.redirect_stderr(files[2]):
                code = run_command_line(words)
        finally:
            sys.stdin = stdin
            sys.path[:] = path
            for name in [name for name, module in sys.modules.items() if _is_module_of(self.cwd, module)]:
                del sys.modules[name]
            os.chdir(cwd)
            _replace_environ(before)
        return code, *(_bytes_written(file) for file in files[1:])


def _is_module_of(directory: Path, module: Any) -> bool:
    return str(getattr(module, "__file__", None)).startswith(f"{directory}{os.sep}")


def _replace_environ(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)


def _bytes_written(file: io.TextIOWrapper) -> bytes:
    file.flush()
    buffer = file.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


@functools.cache
def _command_server() -> CommandServerClient:
    return CommandServerClient()
