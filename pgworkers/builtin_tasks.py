"""Tasks that come with pgworkers, off unless an app includes them: `exec` runs a program, `echo` returns its argument.

`exec` starts the program without a shell and inside the worker's process group, so that whatever ends the job also ends the
program. Its output goes where a handler's output goes, and the end of it into the result or the error.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pgworkers.context import Ctx
from pgworkers.errors import UsageError
from pgworkers.limits.rate import STOP_CHECK_INTERVAL_SECONDS
from pgworkers.linux.environment import ORIGIN_VARIABLE

#: Variables that a program inherits. Never the address of the database or other secrets of the environment.
INHERITED_VARIABLES = (
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
)
OUTPUT_TAIL_BYTES = 4 << 10
MAX_READS_AFTER_EXIT = 4  # reads of the pipe after the program has ended: more than a pipe holds
TERMINATE_GRACE_SECONDS = 2.0  # from asking the program to end to killing it, when the job should stop


_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class CommandFailed(Exception):
    """The program failed. The text has its exit status and the end of its output."""


def get_builtin_task(name: str, env: tuple[str, ...]) -> Callable[..., Any]:
    """Return the function of a built-in task."""
    match name:
        case "echo":
            return echo
        case "exec":
            return _make_exec_task(env)
    raise UsageError(f"include({name!r}): there is no such built-in task; there are echo and exec")


def echo(value: Any = None) -> Any:
    """Return the value."""
    return value


def _make_exec_task(inherited: tuple[str, ...]) -> Callable[..., Any]:
    allowed = (*INHERITED_VARIABLES, ORIGIN_VARIABLE, *inherited)

    def run(
        ctx: Ctx, argv: list[str], cwd: str | None = None, env: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Run a program without a shell. The result has the end of its output."""
        if not argv:
            raise UsageError("exec: argv is empty; give the program and its arguments as a list")
        kept = {name: value for name, value in os.environ.items() if name in allowed}
        with _running_program(argv, cwd, kept | (env or {})) as program:
            tail = _relay_output(ctx, program)
        text = _CONTROL_CHARACTERS.sub("\ufffd", tail.decode("utf-8", "replace"))
        if program.returncode:
            raise CommandFailed(
                f"{argv[0]}: {_describe_exit(program.returncode)}" + (f"\n{text}" if text else "")
            )
        return {"status": 0, "output": text}

    return run


@contextmanager
def _running_program(
    argv: list[str], cwd: str | None, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert program.stdout is not None
    os.set_blocking(program.stdout.fileno(), False)
    try:
        yield program
    finally:  # also when the handler is interrupted
        program.kill()
        program.wait()
        program.stdout.close()


def _relay_output(ctx: Ctx, program: subprocess.Popen[bytes]) -> bytes:
    """Relay the output of the program until it ends, and return the end of it.

    A descendant of the program that keeps the pipe open is not waited for.
    """
    assert program.stdout is not None
    fd, tail = program.stdout.fileno(), b""
    asked: float | None = None
    looks = 0
    while looks < MAX_READS_AFTER_EXIT:
        ended = program.poll() is not None  # before reading, so that its last output is read
        chunk = _read_available(fd, 0.0 if ended else STOP_CHECK_INTERVAL_SECONDS)
        tail = (tail + chunk)[-OUTPUT_TAIL_BYTES:]
        _write_all(chunk)
        if ended:
            looks = looks + 1 if chunk else MAX_READS_AFTER_EXIT
        elif ctx.cancelled:
            if asked is None:
                asked = time.monotonic()
                program.terminate()
            elif time.monotonic() - asked > TERMINATE_GRACE_SECONDS:
                program.kill()
    ctx.check_cancelled()
    return tail


def _read_available(fd: int, wait: float) -> bytes:
    """Return what can be read within `wait` seconds; nothing at the end of the output."""
    if not select.select([fd], [], [], wait)[0]:
        return b""
    try:
        chunk = os.read(fd, 64 << 10)
    except BlockingIOError:
        return b""
    if not chunk and wait:
        time.sleep(wait)  # it closed its output but still runs
    return chunk


def _write_all(chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(1, chunk) :]


def _describe_exit(status: int) -> str:
    if status > 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"
