"""The users of the embedded server, counted by the kernel.

There are two lock files in the home. `start.lock` is held exclusively, for a short time, by the process that starts or
stops the server. `users.lock` is held shared by every process that uses the server; the kernel releases it when the
process is killed. There are two files because converting a shared lock into an exclusive one releases it in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pgworkers.embedded import account as accounts
from pgworkers.embedded.account import EmbeddedServerError


def create_home(home: Path) -> None:
    """Make the home and what is missing above it.

    Root makes it as the owner of the directory it comes to lie in, if that is an ordinary account, so that
    the owner can use it too. Others may pass through a new home of root's: the server's account needs to.
    """
    try:
        if home.is_dir():
            return
        owner = accounts.choose_account(home, None)
        if owner.is_other_user and accounts.nearest_existing(home).stat().st_uid == owner.uid:
            accounts.run_as(owner, ["/bin/mkdir", "-p", home])
        else:
            home.parent.mkdir(parents=True, exist_ok=True)
            home.mkdir(mode=0o700)
            home.chmod(0o711 if owner.is_other_user else 0o700)
        accounts.write_atomically(home / ".gitignore", "*\n")
    except FileExistsError:
        pass  # another process was quicker
    except OSError as error:
        raise _unusable_home(home, error) from None


def refuse_unusable_home(home: Path) -> None:
    """Refuse a home that cannot be used, even for reading. One that does not exist yet is allowed."""
    try:
        if not stat.S_ISDIR(home.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(home, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable_home(home, error) from None


@contextmanager
def start_lock(home: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """The right to start or stop the server of this home; `on_wait` is called if another has it now."""
    descriptor = _open_lock_file(home / "start.lock")
    try:
        if not _try_lock(descriptor, fcntl.LOCK_EX):
            if on_wait:
                on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def acquire_users_lock(home: Path) -> int:
    """Become a user; the descriptor is the membership. Call under `starting`: then this never waits."""
    descriptor = _open_lock_file(home / "users.lock")
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def release_users_lock(descriptor: int) -> None:
    """No longer a user. Unlocked and not just closed: a fork may have a copy of the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_unused(home: Path) -> bool:
    """Whether no process uses the server. Call under `starting`: the trial would mislead another's."""
    descriptor = _open_lock_file(home / "users.lock")
    try:
        return _try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def user_pids(home: Path) -> list[int]:
    """The processes that hold the users' lock, as far as the kernel shows them (for people, not for decisions)."""
    try:
        found = (home / "users.lock").stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    fields = [line.split() for line in lines]
    return sorted(
        {int(f[4]) for f in fields if len(f) > 5 and f[1] == "FLOCK" and f[5] == name and f[4].isdigit()}
    )


def _open_lock_file(path: Path) -> int:
    """Open a lock file, making it if needed. Descriptors are not inherited by programs we start.

    Root gives a new one to the owner of the home, so that the owner can use it too; an existing file is never
    changed, whatever it is.
    """
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        owner = path.parent.stat()
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    except OSError as error:
        raise _unusable_home(path.parent, error) from None
    return descriptor


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unusable_home(home: Path, error: OSError) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"the embedded server's directory {home} cannot be used ({error.strerror}); nothing was started. "
        "Give PGWORKERS_EMBEDDED_DIRECTORY a directory you may write to, or name a Postgres with --dsn or DATABASE_URL"
    )
