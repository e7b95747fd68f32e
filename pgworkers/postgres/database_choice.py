"""Decide which database is used, and refuse files that another user may have put there.

Commands look for `app.py` in the current directory and for `.pgworkers` next to it. In a directory that others can write
to, both may have been put there by any user. Paths that the user names are not checked.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from pgworkers.errors import UsageError
from pgworkers.settings import Settings

#: Any of these says which server is meant; PGUSER or PGPASSWORD alone do not.
PG_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGSERVICE")


@dataclass(frozen=True, slots=True)
class DatabaseChoice:
    """The Postgres to use. `dsn` is empty for PG* variables, which libpq reads, and for the embedded server."""

    dsn: str
    source: str
    is_embedded: bool
    home: Path  # of the embedded server
    is_home_configured: bool = False  # else it was found next to the app


def choose_database(
    settings: Settings, sources: Mapping[str, str], config_dir: Path, environ: Mapping[str, str] | None = None
) -> DatabaseChoice:
    """Choose the first of: --dsn, PGWORKERS_DSN, DATABASE_URL, the app's dsn, PG* variables; else the embedded server.

    --dsn-file and PGWORKERS_DSN_FILE count like --dsn and PGWORKERS_DSN. PG* variables come after the app because
    they only fill in what an address leaves open, as in libpq.
    """
    environ = os.environ if environ is None else environ
    home = (
        Path(settings.embedded_directory).expanduser()
        if settings.embedded_directory
        else config_dir / ".pgworkers"
    )
    home, named = home.absolute(), bool(settings.embedded_directory)
    if settings.dsn:
        source = sources.get("dsn", "default")
        source = {"command line": "--dsn", "app": "the app's dsn"}.get(source, source)
        return DatabaseChoice(settings.dsn, source, False, home, named)
    if any(environ.get(name) for name in PG_VARIABLES):
        return DatabaseChoice("", "PG* variables", False, home, named)
    return DatabaseChoice("", "embedded server", True, home, named)


def refuse_foreign_home(chosen: DatabaseChoice, app_owner: int | None) -> None:
    """Refuse a directory of an embedded server that another user may have put there.

    `app_owner`: the user whose app was named or is running here already. Their directory is trusted as much as their code.
    """
    if chosen.is_home_configured:
        return
    why = reason_to_distrust(chosen.home, () if app_owner is None else (app_owner,))
    if why is not None:
        raise UsageError(
            f"{chosen.home} {why}, so it is not used as the embedded server's directory; nothing was done. If you trust it, "
            f"set PGWORKERS_EMBEDDED_DIRECTORY={shlex.quote(str(chosen.home))}; "
            "or name a Postgres with --dsn or DATABASE_URL"
        )


def app_owner(config: str | None) -> int | None:
    """The user that owns the file of an app; None if there is no app."""
    if config is None:
        return None
    file = Path(config.rpartition(":")[0] or config)
    try:
        return (file if file.is_file() else app_directory(config)).stat().st_uid
    except OSError:
        return None


def app_directory(config: str | None) -> Path:
    """The directory of an app, found by its name alone. The embedded server lives there.

    For an imported app it is the directory of `App.source_file`, so both find the same server.
    A dotted name is looked for as an import would, but nothing of it is imported: who asks is often the master.
    """
    name = (config or "").rpartition(":")[0] or config or ""
    path = Path(name)
    if name.endswith(".py") or os.sep in name or path.is_file():
        return path.resolve().parent
    for root in (os.getcwd(), *sys.path) if name else ():
        module = Path(root, *name.split("."))
        for file in (module / "__init__.py", module.with_name(f"{module.name}.py")):
            if file.is_file():
                return file.resolve().parent
    return Path.cwd()


_WRITABLE_BY_OTHERS = stat.S_IWOTH


def reason_to_distrust(path: Path, trusted: Container[int] = ()) -> str | None:
    """Why another user may have put this file or directory there; None if it is trusted."""
    try:
        found, above = path.stat(), path.parent.stat()
    except OSError:
        return None  # opening it will raise the error
    if found.st_uid not in (0, os.geteuid()) and found.st_uid not in trusted:
        return f"belongs to {_user_name(found.st_uid)}"
    if found.st_mode & _WRITABLE_BY_OTHERS:
        return "can be written by every user of this machine"
    if found.st_mode & stat.S_IWGRP and found.st_gid != _default_group(found.st_uid):
        return f"can be written by the group {found.st_gid}"
    if above.st_mode & _WRITABLE_BY_OTHERS and not above.st_mode & stat.S_ISVTX:
        return "lies in a directory in which every user of this machine can replace it"
    return None


def _user_name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user id {uid}"


def _default_group(uid: int) -> int:
    """The group that a user's files have by default: with a umask of 002 it may write to all of them."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
