"""A Postgres of our own, for people who have none running.

`EmbeddedServer(home).acquire()` gives the address of a running server: the one that already serves this home,
or a new one. Every process that acquired is a user; the last one to release stops the server, unless others are
connected to its address, and the kernel releases for those that were killed. The reasons behind each step are in
docs/adr/0110-embedded-server.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pgworkers.errors import PgworkersError
from pgworkers.postgres import embedded_account as accounts
from pgworkers.postgres import embedded_binaries as binaries
from pgworkers.postgres import embedded_cluster as cluster
from pgworkers.postgres import embedded_locks as locks
from pgworkers.postgres import embedded_place as places
from pgworkers.postgres import embedded_process as process
from pgworkers.postgres import embedded_sessions as sessions
from pgworkers.postgres.embedded_account import Account, NoServer
from pgworkers.postgres.embedded_binaries import Binaries
from pgworkers.postgres.embedded_place import Place


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What `pgworkers pg status` tells."""

    home: Path
    data: Path
    exists: bool  # there is data
    version: int | None  # major version of the data
    pid: int | None  # None: not running
    ready: bool
    dsn: str | None
    users: list[int]  # processes that use it
    kept: bool  # started by `pg start`: stays when the last user leaves
    log: Path


class EmbeddedServer:
    """The server of one home, as one process sees it. Not for use by several threads at once."""

    def __init__(
        self,
        home: Path,
        *,
        options: Mapping[str, str] | None = None,
        bindir: Path | None = None,
        say: Callable[[str], None] | None = None,
        stores: tuple[Path, ...] = places.STORES,
    ) -> None:
        """`options` are settings of a server that this object starts; `say` is told what takes time."""
        self.home = home.expanduser().absolute().resolve()
        self._options = dict(options or {})
        self._bindir = bindir
        self._say = say or (lambda _: None)
        self._stores = stores
        self._membership: int | None = None
        self._member = 0

    def acquire(self) -> str:
        """The address of the running server, started if needed; this process is a user from now on."""
        locks.make_home(self.home)
        with locks.starting(self.home, self._say_waiting):
            try:
                dsn = self._running()
                if not self._is_member():
                    self._membership, self._member = locks.use(self.home), os.getpid()
            except BaseException:  # Ctrl-C too: what we started must not stay behind without a user
                self._stop_if_unused()
                raise
        return dsn

    def release(self) -> None:
        """No longer a user; the last one stops the server, unless others are connected to its address."""
        if self._membership is None:
            return
        descriptor, self._membership = self._membership, None
        if self._member != os.getpid():  # a fork of the user: closing the copy leaves the user's lock alone
            os.close(descriptor)
            return
        with locks.starting(self.home):
            locks.leave(descriptor)
            self._stop_if_unused()

    def start(self) -> str:
        """Start the server and let it run without users, until `stop`."""
        locks.make_home(self.home)
        with locks.starting(self.home, self._say_waiting):
            dsn = self._running()
            accounts.write_whole(self._place().root / "kept", self._incarnation())
        return dsn

    def stop(self, *, force: bool = False) -> bool:
        """Stop the server; False if it did not run. Refused while others use it, unless forced."""
        locks.refuse_unusable(self.home)
        if not self.home.is_dir():
            return False
        with locks.starting(self.home, self._say_waiting):
            if process.running(self._place().data) is None:
                return False
            if not force:
                self._refuse_if_used("it was not stopped", "or use --force, which cuts them off")
            return self._stop()

    def reset(self) -> None:
        """Stop the server and delete its data. Refused while anybody uses it."""
        locks.refuse_unusable(self.home)
        if not self.home.is_dir():
            return
        with locks.starting(self.home, self._say_waiting):
            self._refuse_if_used("nothing was deleted", "then try again")
            place = self._place()
            self._stop()
            if place.data.exists():
                place.data.rename(place.root / f"data.old-{os.getpid()}")
            self._sweep(place)
            if place.root != self.home:
                shutil.rmtree(place.root)
                (self.home / "elsewhere").unlink()

    def status(self) -> ServerStatus:
        """What is there now; changes nothing, makes nothing, waits for nobody."""
        locks.refuse_unusable(self.home)
        place = self._place()
        pid = process.running(place.data)
        found = process.read(place.data) if pid else None
        return ServerStatus(
            home=self.home,
            data=place.data,
            exists=place.data.exists(),
            version=cluster.version(place),
            pid=pid,
            ready=found is not None and found.status == "ready",
            dsn=cluster.address(found.socket_dir) if found else None,
            users=locks.users(self.home),
            kept=pid is not None and self._kept(place),
            log=place.log,
        )

    def binaries(self) -> Binaries:
        """The programs that belong to this server's data, for `psql`."""
        place = self._place()
        return self._binaries(place, self._account(place))

    def foreign_programs(self) -> Path | None:
        """Where the programs of the running server are, when they are not those that came with us."""
        pid = process.running(self._place().data)
        try:
            return binaries.foreign(Path(os.readlink(f"/proc/{pid}/exe"))) if pid else None
        except OSError:  # it has just gone, or runs under an account that is not ours to look at
            return None

    # -- under the start lock --------------------------------------------------------------------------------

    def _running(self) -> str:
        place = self._place()
        pid = process.running(place.data)
        if pid is None or not process.await_ready(place.data, pid):
            self._refuse_if_elsewhere(place)
            place = self._start()
        found = process.read(place.data)
        if found is None:
            raise NoServer(f"the embedded Postgres ended while it was looked at; its log is {place.log}")
        dsn = cluster.address(found.socket_dir)
        cluster.make_database(found.socket_dir)
        return dsn

    def _start(self) -> Place:
        account = self._account(self._place())
        place = places.settle(self.home, account, self._stores)
        self._sweep(place)
        programs = self._binaries(place, account)
        if not place.data.exists():
            self._say(f"making a database with the embedded Postgres {programs.major} in {place.root}")
            cluster.initialise(place, programs, account, sync=self._options.get("fsync") != "off")
        self._say(f"starting the embedded Postgres {programs.major} in {place.root}")
        accounts.write_whole(place.root / "namespace", process.namespace())
        process.start(place, programs, account, places.socket_directory(place, account), self._options)
        return place

    def _stop_if_unused(self) -> None:
        place = self._place()
        if not locks.unused(self.home) or self._kept(place):
            return
        if strangers := self._strangers(place):
            self._say(
                f"the embedded Postgres in {place.root} goes on: others are connected to its address "
                f"({strangers} {'session' if strangers == 1 else 'sessions'}); pgworkers pg stop ends it when they have left"
            )
            return
        self._stop()

    def _strangers(self, place: Place) -> int:
        found = process.read(place.data) if process.running(place.data) else None
        return sessions.strangers(found.socket_dir) if found is not None and found.status == "ready" else 0

    def _stop(self) -> bool:
        place = self._place()
        found = process.read(place.data)
        ended = process.end(place.data)
        if found is not None and ended and found.socket_dir.parent != place.root:
            with suppress(OSError):  # a short directory elsewhere; not empty, not there, not ours: leave it
                found.socket_dir.rmdir()
        with suppress(FileNotFoundError):
            (place.root / "kept").unlink()
        return ended

    def _refuse_if_used(self, undone: str, otherwise: str) -> None:
        whom = ""
        used = not locks.unused(self.home)
        if used:
            pids = ", ".join(map(str, locks.users(self.home)))
            whom = f" by process {pids}" if pids else ""
        elif strangers := self._strangers(self._place()):
            used = True
            whom = f" by {strangers} {'session' if strangers == 1 else 'sessions'} connected to its address"
        if used:
            raise PgworkersError(
                f"the embedded server in {self.home} is in use{whom}; {undone}. "
                f"Stop what uses it first, {otherwise}"
            )

    def _refuse_if_elsewhere(self, place: Place) -> None:
        """A server in another container is not to be seen from here, but its users' lock is."""
        try:
            other = (place.root / "namespace").read_text()
        except FileNotFoundError:
            return
        if other != process.namespace() and process.recorded_pid(place.data) and not locks.unused(self.home):
            raise NoServer(
                f"the embedded server in {self.home} is in use in another container; nothing was started. "
                "Give PGWORKERS_HOME a directory of its own here, or name a Postgres with --dsn"
            )

    def _sweep(self, place: Place) -> None:
        """Remove what an interrupted initdb or reset left."""
        for leftover in [*place.root.glob("data.new-*"), *place.root.glob("data.old-*")]:
            shutil.rmtree(leftover)

    # -- facts -----------------------------------------------------------------------------------------------

    def _place(self) -> Place:
        return places.known(self.home, self._stores)

    def _account(self, place: Place) -> Account:
        return accounts.choose(self.home, place.data if place.data.exists() else None)

    def _binaries(self, place: Place, account: Account) -> Binaries:
        return binaries.find(account, self._bindir, self._stores, cluster.version(place))

    def _is_member(self) -> bool:
        return self._membership is not None and self._member == os.getpid()

    def _incarnation(self) -> str:
        found = process.read(self._place().data)
        return f"{found.pid} {found.started}\n" if found else ""

    def _kept(self, place: Place) -> bool:
        try:
            return (place.root / "kept").read_text() == self._incarnation() != ""
        except FileNotFoundError:
            return False

    def _say_waiting(self) -> None:
        self._say("waiting for another process that starts or stops the embedded Postgres")
