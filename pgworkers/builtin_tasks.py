"""Tasks that come with pgworkers, off unless an app includes them.

`exec` runs a program, `call` calls an importable function, and `echo` returns its argument.

`exec` starts the program without a shell and inside the worker's process group, so that whatever ends the job also ends the
program. Its output goes where a handler's output goes, and the end of it into the result or the error.

`call` calls only functions that are defined in one of the modules that the app has named. A job cannot reach a function that
such a module has merely imported, and a module that is not named is not imported.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import iscoroutinefunction
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


#: The name of the task that `app.executor()` uses for functions.
CALL_TASK = "call"
#: Options of built-in tasks. A function that raised is not called again: the caller gets the exception.
BUILTIN_OPTIONS: Mapping[str, Mapping[str, Any]] = {CALL_TASK: {"retry_verdicts": {"error": False}}}
_FUNCTION_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z]\w*)", re.ASCII)


def get_builtin_task(name: str, env: tuple[str, ...], modules: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Return the function of a built-in task."""
    match name:
        case "call":
            return _make_call_task(modules)
        case "echo":
            return echo
        case "exec":
            return _make_exec_task(env)
    raise UsageError(f"include({name!r}): there is no such built-in task; there are call, echo and exec")


def echo(value: Any = None) -> Any:
    """Return the value."""
    return value


def _make_call_task(modules: tuple[str, ...]) -> Callable[..., Any]:
    if not modules or not all(isinstance(one, str) and one for one in modules):
        raise UsageError(
            'include("call") needs the modules whose functions jobs may call: modules=["mypackage.jobs"]'
        )

    def call(function: str, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> Any:
        """Call an importable function, named `module:name`, and return its result."""
        return find_function(function, modules)(*(args or []), **(kwargs or {}))

    return call


def find_function(text: str, modules: tuple[str, ...]) -> Callable[..., Any]:
    """Import the function that `module:name` names. UsageError if it is not defined in one of these modules."""
    named = _FUNCTION_NAME.fullmatch(text)
    if named is None:
        raise UsageError(f"call: {text[:200]!r} is not module:name; nothing was called")
    module_name, name = named.groups()
    if module_name not in modules:
        raise UsageError(
            f"call: the module {module_name} is not among those that jobs may call "
            f"({', '.join(modules)}); nothing was called"
        )
    function = getattr(import_module(module_name), name, None)
    if not callable(function) or isinstance(function, type) or _home(function) != module_name:
        raise UsageError(f"call: {module_name} defines no function {name}; nothing was called")
    if iscoroutinefunction(function):
        raise UsageError(f"call: {text} is async; declare it as a task. Nothing was called")
    return function  # type: ignore[no-any-return]


def _home(function: Any) -> str | None:
    """The module that defines a function. A decorator that uses functools.wraps keeps it."""
    return getattr(function, "__module__", None)


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
