"""The account that the embedded server runs as.

Postgres refuses to run as root. An ordinary user runs it as themselves. Root runs it as an account that
already exists and has no privileges: the owner of the project directory if that is a person, else postgres,
`nobody` or daemon. No account is created and no permission of an existing directory is changed.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgworkers.errors import DatabaseUnreachable

_FALLBACK_ACCOUNTS = ("postgres", "nobody", "daemon")
_INHERITED_VARIABLES = ("PATH", "TZ", "LD_LIBRARY_PATH")


class EmbeddedServerError(DatabaseUnreachable):
    """The embedded server cannot be started, and a retry without a change will not help."""

    def __init__(self, text: str) -> None:
        super().__init__(text, is_transient=False)


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int

    @property
    def is_other_user(self) -> bool:
        """True when this process (then root) has to become another user to run the server."""
        return self.uid != os.geteuid()


def choose_account(directory: Path, data: Path | None) -> Account:
    """The account of a server: the owner of its data, else the user of this process, else an unprivileged one."""
    me = os.geteuid()
    if me != 0:
        if data is not None and _owner(data) not in (None, me):
            raise EmbeddedServerError(
                f"the embedded server's data in {data} belongs to {_show_user(_owner(data))}, not to you; "
                "nothing was started. Run as that user, or give PGWORKERS_EMBEDDED_DIRECTORY a directory of your own"
            )
        found = _account(me)
        if found is None:
            raise EmbeddedServerError(
                f"user id {me} has no name in /etc/passwd and Postgres refuses to run so; nothing was "
                "started. Run as a named user, or name another Postgres with --dsn or DATABASE_URL"
            )
        return found
    if data is not None and _owner(data) is not None:
        found = _account(_owner(data))
        if found is None or found.uid == 0:
            raise EmbeddedServerError(
                f"the embedded server's data in {data} belongs to {_show_user(_owner(data))}, as whom Postgres "
                "cannot run; nothing was started. Restore its owner, or start from scratch with `pgworkers pg reset`"
            )
        return found
    candidates = [
        _account(_owner(nearest_existing(directory))),
        *(_account_by_name(name) for name in _FALLBACK_ACCOUNTS),
    ]
    for candidate in candidates:
        if candidate is not None and candidate.uid != 0:
            return candidate
    raise EmbeddedServerError(
        f"Postgres refuses to run as root and none of the accounts {', '.join(_FALLBACK_ACCOUNTS)} exists; "
        "nothing was started. Run pgworkers as an ordinary user, or name a Postgres by --dsn or DATABASE_URL"
    )


def nearest_existing(path: Path) -> Path:
    """The path itself, or the closest directory above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def run_as(
    account: Account, argv: Sequence[str | Path], *, out: int | None = None, timeout: float = 120.0
) -> str | None:
    """Run a short command as the account in a session of its own; its output, or None when it failed.

    With `out` the output goes there instead. The environment is a clean one: PG* variables of the caller must
    not reach the server, nor the marks by which process trees are found and swept.
    """
    environ = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(
            [os.fspath(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if out is None else out,
            stderr=subprocess.STDOUT if out is not None else subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", **environ, "LC_ALL": "C"},
            start_new_session=True,
            umask=0o077,
            user=account.uid if account.is_other_user else None,
            group=account.gid if account.is_other_user else None,
            extra_groups=[] if account.is_other_user else None,
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return "" if done.stdout is None else os.fsdecode(done.stdout)


def can_enter(account: Account, directory: Path) -> bool:
    """Whether the account may pass through the directory; tried, so that access lists count too."""
    return not account.is_other_user or run_as(account, ["/bin/sh", "-c", 'cd "$0"', directory]) is not None


def make_private(directory: Path, account: Account) -> None:
    """A new directory that only the account (and root) can enter.

    Root makes it by the account's own hand when the account owns what is above: it could replace the new
    directory by a link before root gives it away.
    """
    if account.is_other_user and _owner(directory.parent) == account.uid:
        if run_as(account, ["/bin/mkdir", "-m", "700", directory]) is None:
            raise PermissionError(errno.EACCES, f"{account.name} cannot make a directory", str(directory))
        return
    directory.mkdir(mode=0o700)
    if account.is_other_user:
        os.chown(directory, account.uid, account.gid, follow_symlinks=False)


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file in one step, never through a link that another user put there."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "w") as file:
        file.write(text)
    fresh.rename(path)


def is_private(directory: Path, account: Account) -> bool:
    """True if this is a real directory of the account that no other user can enter."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return (found.st_mode & 0o170777) == 0o040700 and found.st_uid == account.uid


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None


def _account(uid: int | None) -> Account | None:
    if uid is None:
        return None
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _account_by_name(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _show_user(uid: int | None) -> str:
    found = _account(uid)
    return found.name if found else f"user id {uid}"
