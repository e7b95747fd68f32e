"""Start, share and stop the embedded Postgres.

`EmbeddedServer(home).acquire()` returns the address of the server of this home, and starts it if it does not run. Every
process that acquired it is a user. The last one to release stops the server, unless other sessions are connected. For a
killed process the kernel releases. docs/adr/11-embedded-server.md has the reasons for each step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pgworkers.embedded import account as accounts
from pgworkers.embedded import binaries, cluster, locks, process
from pgworkers.embedded import location as places
from pgworkers.embedded.account import Account, EmbeddedServerError
from pgworkers.embedded.binaries import Binaries
from pgworkers.embedded.location import DataLocation
from pgworkers.errors import PgworkersError


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What `pgworkers pg status` shows."""

    home: Path
    data: Path
    has_data: bool  # there is data
    major_version: int | None  # major version of the data
    pid: int | None  # None: not running
    is_ready: bool
    dsn: str | None
    user_pids: list[int]  # processes that use it
    is_kept_running: bool  # started by `pg start`: stays when the last user leaves
    log: Path


class EmbeddedServer:
    """The server of one home, as one process sees it. Not for use by several threads at once."""

    def __init__(
        self,
        home: Path,
        *,
        options: Mapping[str, str] | None = None,
        bindir: Path | None = None,
        on_message: Callable[[str], None] | None = None,
        stores: tuple[Path, ...] = places.SHARED_DIRECTORIES,
    ) -> None:
        """`options` are settings of a server that this object starts; `on_message` gets a line for each slow step."""
        self.home = home.expanduser().absolute().resolve()
        self._options = dict(options or {})
        self._bindir = bindir
        self._on_message = on_message or (lambda _: None)
        self._stores = stores
        self._users_lock: int | None = None
        self._users_lock_pid = 0

    def acquire(self) -> str:
        """The address of the running server, started if needed; this process is a user from now on."""
        locks.create_home(self.home)
        with locks.start_lock(self.home, self._announce_wait):
            try:
                dsn = self._ensure_running()
                if not self._is_user():
                    self._users_lock, self._users_lock_pid = locks.acquire_users_lock(self.home), os.getpid()
            except BaseException:  # Ctrl-C too: what we started must not stay behind without a user
                self._stop_if_unused()
                raise
        return dsn

    def release(self) -> None:
        """No longer a user; the last one stops the server, unless others are connected to its address."""
        if self._users_lock is None:
            return
        descriptor, self._users_lock = self._users_lock, None
        if (
            self._users_lock_pid != os.getpid()
        ):  # a fork of the user: closing the copy leaves the user's lock alone
            os.close(descriptor)
            return
        with locks.start_lock(self.home):
            locks.release_users_lock(descriptor)
            self._stop_if_unused()

    def start(self) -> str:
        """Start the server and let it run without users, until `stop`."""
        locks.create_home(self.home)
        with locks.start_lock(self.home, self._announce_wait):
            dsn = self._ensure_running()
            accounts.write_atomically(self._location().root / "kept", self._server_identity())
        return dsn

    def stop(self, *, force: bool = False) -> bool:
        """Stop the server; False if it did not run. Refused while others use it, unless forced."""
        locks.refuse_unusable_home(self.home)
        if not self.home.is_dir():
            return False
        with locks.start_lock(self.home, self._announce_wait):
            if process.running_pid(self._location().data_directory) is None:
                return False
            if not force:
                self._refuse_if_used("it was not stopped", "or use --force, which cuts them off")
            return self._stop()

    def reset(self) -> None:
        """Stop the server and delete its data. Refused while it is in use."""
        locks.refuse_unusable_home(self.home)
        if not self.home.is_dir():
            return
        with locks.start_lock(self.home, self._announce_wait):
            self._refuse_if_used("nothing was deleted", "then try again")
            place = self._location()
            self._stop()
            if place.data_directory.exists():
                place.data_directory.rename(place.root / f"data.old-{os.getpid()}")
            self._remove_leftovers(place)
            if place.root != self.home:
                shutil.rmtree(place.root)
                (self.home / "elsewhere").unlink()

    def status(self) -> ServerStatus:
        """The current state. Changes nothing, creates nothing and does not wait."""
        locks.refuse_unusable_home(self.home)
        place = self._location()
        pid = process.running_pid(place.data_directory)
        found = process.read_postmaster_file(place.data_directory) if pid else None
        return ServerStatus(
            home=self.home,
            data=place.data_directory,
            has_data=place.data_directory.exists(),
            major_version=cluster.data_version(place),
            pid=pid,
            is_ready=found is not None and found.status == "ready",
            dsn=cluster.dsn_of(found.socket_dir) if found else None,
            user_pids=locks.user_pids(self.home),
            is_kept_running=pid is not None and self._is_kept_running(place),
            log=place.log_file,
        )

    def binaries(self) -> Binaries:
        """The programs that belong to this server's data, for `psql`."""
        place = self._location()
        return self._binaries(place, self._account(place))

    def system_programs(self) -> Path | None:
        """Where the programs of the running server are, when they are not those that came with us."""
        pid = process.running_pid(self._location().data_directory)
        try:
            program = psutil.Process(pid).exe() if pid else ""
        except psutil.Error:  # it has just ended, or we may not look at processes of its account
            return None
        return binaries.system_directory(Path(program)) if program else None

    # -- under the start lock --------------------------------------------------------------------------------

    def _ensure_running(self) -> str:
        place = self._location()
        pid = process.running_pid(place.data_directory)
        if pid is None or not process.wait_until_ready(place.data_directory, pid):
            self._refuse_other_container(place)
            place = self._start()
        found = process.read_postmaster_file(place.data_directory)
        if found is None:
            raise EmbeddedServerError(
                f"the embedded Postgres ended while it was looked at; its log is {place.log_file}"
            )
        dsn = cluster.dsn_of(found.socket_dir)
        cluster.create_database(found.socket_dir)
        return dsn

    def _start(self) -> DataLocation:
        account = self._account(self._location())
        place = places.create_location(self.home, account, self._stores)
        self._remove_leftovers(place)
        programs = self._binaries(place, account)
        if not place.data_directory.exists():
            self._on_message(
                f"making a database with the embedded Postgres {programs.major_version} in {place.root}"
            )
            cluster.initialise(place, programs, account, sync=self._options.get("fsync") != "off")
        self._on_message(f"starting the embedded Postgres {programs.major_version} in {place.root}")
        accounts.write_atomically(place.root / "namespace", process.pid_namespace())
        process.start(place, programs, account, places.socket_directory(place, account), self._options)
        return place

    def _stop_if_unused(self) -> None:
        place = self._location()
        if not locks.is_unused(self.home) or self._is_kept_running(place):
            return
        if strangers := self._foreign_sessions(place):
            self._on_message(
                f"the embedded Postgres in {place.root} keeps running: other sessions are connected "
                f"({strangers} {'session' if strangers == 1 else 'sessions'}); pgworkers pg stop ends it when they have left"
            )
            return
        self._stop()

    def _foreign_sessions(self, place: DataLocation) -> int:
        found = (
            process.read_postmaster_file(place.data_directory)
            if process.running_pid(place.data_directory)
            else None
        )
        return (
            cluster.count_foreign_sessions(found.socket_dir)
            if found is not None and found.status == "ready"
            else 0
        )

    def _stop(self) -> bool:
        place = self._location()
        found = process.read_postmaster_file(place.data_directory)
        ended = process.stop(place.data_directory)
        if found is not None and ended and found.socket_dir.parent != place.root:
            with suppress(
                OSError
            ):  # a short directory elsewhere, which may be gone, in use or another user's
                found.socket_dir.rmdir()
        with suppress(FileNotFoundError):
            (place.root / "kept").unlink()
        return ended

    def _refuse_if_used(self, undone: str, otherwise: str) -> None:
        whom = ""
        used = not locks.is_unused(self.home)
        if used:
            pids = ", ".join(map(str, locks.user_pids(self.home)))
            whom = f" by process {pids}" if pids else ""
        elif strangers := self._foreign_sessions(self._location()):
            used = True
            whom = f" by {strangers} {'session' if strangers == 1 else 'sessions'} connected to its address"
        if used:
            raise PgworkersError(
                f"the embedded server in {self.home} is in use{whom}; {undone}. "
                f"Stop what uses it first, {otherwise}"
            )

    def _refuse_other_container(self, place: DataLocation) -> None:
        """A server in another container is not to be seen from here, but its users' lock is."""
        try:
            other = (place.root / "namespace").read_text()
        except FileNotFoundError:
            return
        if (
            other != process.pid_namespace()
            and process.recorded_pid(place.data_directory)
            and not locks.is_unused(self.home)
        ):
            raise EmbeddedServerError(
                f"the embedded server in {self.home} is in use in another container; nothing was started. "
                "Give PGWORKERS_EMBEDDED_DIRECTORY a directory of its own here, or name a Postgres with --dsn"
            )

    def _remove_leftovers(self, place: DataLocation) -> None:
        """Remove what an interrupted initdb or reset left."""
        for leftover in [*place.root.glob("data.new-*"), *place.root.glob("data.old-*")]:
            shutil.rmtree(leftover)

    # -- facts -----------------------------------------------------------------------------------------------

    def _location(self) -> DataLocation:
        return places.find_location(self.home, self._stores)

    def _account(self, place: DataLocation) -> Account:
        return accounts.choose_account(
            self.home, place.data_directory if place.data_directory.exists() else None
        )

    def _binaries(self, place: DataLocation, account: Account) -> Binaries:
        return binaries.find_binaries(account, self._bindir, self._stores, cluster.data_version(place))

    def _is_user(self) -> bool:
        return self._users_lock is not None and self._users_lock_pid == os.getpid()

    def _server_identity(self) -> str:
        found = process.read_postmaster_file(self._location().data_directory)
        return f"{found.pid} {found.started}\n" if found else ""

    def _is_kept_running(self, place: DataLocation) -> bool:
        try:
            return (place.root / "kept").read_text() == self._server_identity() != ""
        except FileNotFoundError:
            return False

    def _announce_wait(self) -> None:
        self._on_message("waiting for another process that starts or stops the embedded Postgres")
