"""Choose the directories of the embedded server's data and socket.

Normally they are `<home>/data` and `<home>/socket`. There are two exceptions. If root runs the server as another account,
and that account cannot enter the home (a project in /root), the data gets a directory below /var/lib/pgworkers, and the
file `<home>/elsewhere` names it. If the path of the socket would be longer than the 107 bytes that the kernel allows, the
socket gets a short directory.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pgworkers.embedded import account as accounts
from pgworkers.embedded.account import Account, EmbeddedServerError

SHARED_DIRECTORIES = (Path("/var/lib/pgworkers"), Path("/var/tmp/pgworkers"))
SOCKET_PORT = 5432  # only a part of the socket's name: nothing listens on a network
MAX_SOCKET_PATH_BYTES = 107
_SAFE_PATH = re.compile(
    r"[\w./@%+=:-]+", re.ASCII
)  # libpq and Postgres read commas and quotes in a path as a list


@dataclass(frozen=True, slots=True)
class DataLocation:
    """A directory that holds `data` and, if its path is short enough, `socket`."""

    root: Path

    @property
    def data_directory(self) -> Path:
        return self.root / "data"

    @property
    def log_file(self) -> Path:
        return self.data_directory / "server.log"


def find_location(home: Path, stores: tuple[Path, ...]) -> DataLocation:
    """The place of this home as far as it is settled: what `elsewhere` says, else the home itself.

    The pointer is only believed when it names a directory right below one of our stores that was made for
    this home: `reset` deletes what it names, and a copied project must not share the data of the original.
    """
    try:
        target = Path((home / "elsewhere").read_text().strip())
    except FileNotFoundError:
        return DataLocation(home)
    if target.parent in stores and _was_created_for(target, home):
        return DataLocation(target)
    return DataLocation(home)


def create_location(home: Path, account: Account, stores: tuple[Path, ...]) -> DataLocation:
    """The place where this home's data lies or will lie; made if it is new. Called under the start lock."""
    place = find_location(home, stores)
    if place.root != home or accounts.can_enter(account, home):
        return place
    store = shared_directory(stores)
    root = store / f"{home.parent.name[:20] or 'root'}-{secrets.token_hex(4)}"
    create_passable_directory(root)
    accounts.write_atomically(root / "home", f"{home}\n")
    accounts.write_atomically(home / "elsewhere", f"{root}\n")
    return DataLocation(root)


def shared_directory(stores: tuple[Path, ...]) -> Path:
    """The first store that exists or can be made, and that only root can write to."""
    for store in stores:
        try:
            create_passable_directory(store)
        except FileExistsError:
            pass
        except OSError:
            continue
        found = store.lstat()
        if found.st_uid == os.geteuid() and (found.st_mode & 0o170022) == 0o040000:
            return store
    raise EmbeddedServerError(
        f"the account that runs Postgres needs a directory it can enter, and none of "
        f"{', '.join(map(str, stores))} can be made or is safe to use; nothing was started. "
        "Give PGWORKERS_EMBEDDED_DIRECTORY a directory outside of private ones"
    )


def create_passable_directory(directory: Path) -> None:
    """A new directory of ours that others may enter but not change, whatever the umask."""
    directory.mkdir(mode=0o700)
    directory.chmod(0o711)


def socket_directory(place: DataLocation, account: Account) -> Path:
    """The directory for the socket: private to the account, with a path that fits. Made if it is new."""
    beside = place.root / "socket"
    if is_usable_socket_directory(beside):
        if not accounts.is_private(beside, account):
            if beside.exists():  # of a copied project; no server of ours runs now, so it is not in use
                shutil.rmtree(beside)
            accounts.make_private(beside, account)
        return beside
    name = "pgworkers-" + hashlib.sha256(os.fsencode(place.data_directory)).hexdigest()[:12]
    for parent in _short_parents(account):
        directory = parent / name
        if not is_usable_socket_directory(directory):
            continue
        if accounts.is_private(directory, account):
            return directory
        try:
            accounts.make_private(directory, account)
        except OSError:
            continue  # the name belongs to another user, or we may not write to the parent
        return directory
    return _random_directory(account)


def is_usable_socket_directory(directory: Path) -> bool:
    path = os.fsencode(directory / f".s.PGSQL.{SOCKET_PORT}")
    return len(path) <= MAX_SOCKET_PATH_BYTES and _SAFE_PATH.fullmatch(os.fsdecode(path)) is not None


def _short_parents(account: Account) -> list[Path]:
    if account.is_other_user:  # what our environment names may be closed to it
        return [Path("/tmp")]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    private = [Path(runtime)] if runtime and accounts.is_private(Path(runtime), account) else []
    return [*private, Path(tempfile.gettempdir()), Path("/tmp")]


def _random_directory(account: Account) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="pgworkers-", dir="/tmp"))
    if account.is_other_user:
        os.chown(directory, account.uid, account.gid)
    return directory


def _was_created_for(root: Path, home: Path) -> bool:
    """Whether the directory was made for this home, or for one that has since been moved here."""
    try:
        origin = Path((root / "home").read_text().strip())
    except OSError:
        return False
    if origin == home:
        return True
    try:
        return Path((origin / "elsewhere").read_text().strip()) != root
    except OSError:
        return True
