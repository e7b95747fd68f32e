"""What a process that imports the user's code inherits: everything but the variables that hold the database's password.

The master keeps these variables. The supervisor gets the address in its first message (`Boot`), and workers inherit it by
fork, so `ctx.connect()` and `task.enqueue()` work. What a handler prints, logs or hands to the programs it starts holds no
password. What that is worth: docs/explanation/security.md.

Descriptors 0, 1 and 2 are opened if the parent closed them, otherwise the next file or socket would become stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO, cast

SECRET_VARIABLES = ("PGWORKERS_DSN", "PGWORKERS_DIRECT_DSN", "DATABASE_URL", "PGPASSWORD")
#: The variable that names the master that started a process. A later master finds orphans by it
#: (`master/orphan_processes.py`).
ORIGIN_VARIABLE = "PGWORKERS_TREE"
#: Names, separated by commas, that an operator lets through.
INHERIT_VARIABLE = "PGWORKERS_INHERITED_VARIABLES"
#: Names, separated by commas, that the app may read while it is imported. Handlers and their programs do not get them.
IMPORT_VARIABLE = "PGWORKERS_IMPORT_VARIABLES"


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that runs the user's code."""
    kept = _names(environ, INHERIT_VARIABLE) | _names(environ, IMPORT_VARIABLE)
    return {name: value for name, value in environ.items() if name not in SECRET_VARIABLES or name in kept}


def forget_import_variables() -> None:
    """Remove what only the import may read, after the import and before the first fork."""
    for name in _names(os.environ, IMPORT_VARIABLE) - _names(os.environ, INHERIT_VARIABLE):
        if name in SECRET_VARIABLES:
            os.environ.pop(name, None)


def _names(environ: Mapping[str, str], variable: str) -> set[str]:
    return {name.strip() for name in environ.get(variable, "").split(",")}


def missing_variable_hint(text: str) -> str:
    """What to add to the error of an app that needs one of these variables; empty: the error names none."""
    named = [name for name in SECRET_VARIABLES if name in text]
    if not named:
        return ""
    return (
        f"; {named[0]}, set or not, is kept from processes that import the app: it may hold the password of the "
        f"queue's database. Use ctx.connect(), give your own address another name, or let it through with "
        f"{INHERIT_VARIABLE}={named[0]}"
    )


def open_missing_streams() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed; children inherit it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(_null(fd), True)
    sys.stdin = sys.stdin or _open_stream(0, "r")
    sys.stdout = sys.stdout or _open_stream(1, "w")
    sys.stderr = sys.stderr or _open_stream(2, "w")


def _open_stream(fd: int, mode: str) -> TextIO:
    return cast("TextIO", open(fd, mode, encoding="utf-8", errors="backslashreplace", closefd=False))


def _null(fd: int) -> int:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != fd:
        os.dup2(opened, fd)
        os.close(opened)
    return fd
