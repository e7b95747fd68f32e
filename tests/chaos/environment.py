"""The environment of the soak: a server that may be crashed, proxies and three hosts, and how each is repaired."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from support.cluster import FAST, MISBEHAVING_APP, Cluster, Master, wait_for
from support.ledger import Entry, read
from support.proxy import PACKAGE, Proxy
from support.server import CRASHABLE, migrated
from support.shifted_clock import NoCompiler, ShiftedClock

from chaos.executions import ExecutionTracker
from pgworkers.embedded import process
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.errors import PgworkersError
from pgworkers.settings import Settings, load_settings

T = TypeVar("T")
HOSTS = 3
QUEUES = {"default": 2, "fast": 1, "slow": 2, "alone": 2}
DISK = 512 << 20
#: The test profile, with a supervisor's silence bounded as shortly as the rest.
TIMINGS = FAST | {
    "PGWORKERS_SUPERVISOR_TIMEOUT": "3s",
    "PGWORKERS_TCP_TIMEOUT": "3s",
    "PGWORKERS_DRAIN_TIMEOUT": "3s",
}
_NEWNS, _PRIVATE, _DETACH = 0x00020000, 0x40000 | 0x4000, 2


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def settings() -> Settings:
    return load_settings(environ=TIMINGS).settings


class Postgres:
    """A separate server, as root on a small private mount that can be filled."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o755)
        self.disk: Path | None = home if _own_disk(home) else None
        options = CRASHABLE | {
            "max_connections": "90",
            "max_wal_size": "128MB",
            "min_wal_size": "64MB",
            "autovacuum_naptime": "10s",
            "log_min_messages": "warning",
        }
        self._embedded = EmbeddedServer(home / "pg", options=options, stores=(home / "store",))
        self.dsn = self._embedded.acquire()
        self.data = self._embedded.status().data

    def crash(self) -> None:
        """Immediate shutdown; the next start has to recover."""
        process.stop(self.data, is_fast=False)

    def start(self) -> None:
        """Start it, however it ended."""
        give_up = time.monotonic() + 60
        while True:
            try:
                assert self._embedded.acquire() == self.dsn
                return
            except (PgworkersError, psycopg.Error):
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        self._embedded.release()
        if self.disk is not None:  # else its directory could not be removed
            ctypes.CDLL(None).umount2(os.fsencode(self.disk), _DETACH)


class Host:
    """A host whose master is killed and started again, behind its own proxy."""

    def __init__(self, soak: SoakEnvironment, index: int) -> None:
        self.index = index
        self.name = f"h{index}"
        self.free = threading.Lock()  # held by the fault that uses this host
        self.proxy = Proxy(soak.postgres.dsn)
        self._soak = soak
        self.wall = _own_clock(soak.directory / f"clock{index}")
        self.master = self.start()

    def start(self) -> Master:
        env = TIMINGS | {"PGWORKERS_HOST_LABEL": self.name, "PYTHONPATH": str(PACKAGE.parent)}
        env |= self.wall.environ if self.wall else {}
        with self._soak.starting:
            self.master = self._soak.cluster.start(
                queues=self._soak.queues, dsn=self.proxy.dsn, wait=False, **env
            )
        return self.master

    def ready(self) -> bool:
        if self.master.process.poll() is not None:
            return False
        return len(self.master.worker_pids()) >= len(QUEUES)

    def ensure(self) -> None:
        """Start it again if it has ended for any reason."""
        if self.master.process.poll() is not None:
            self.start()

    def cont(self) -> None:
        for found in self.master.processes():
            try:
                os.kill(found.pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


class SoakEnvironment:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = settings()
        self.queues = ",".join(f"{name}:{count}" for name, count in QUEUES.items())
        self.postgres = Postgres(directory / "disk")
        self.starting = threading.Lock()
        migrated(self.postgres.dsn, "pgworkers")
        self.cluster = Cluster(self.postgres.dsn, directory)
        self.cluster.db.close()
        shutil.copy(MISBEHAVING_APP, directory / "misbehaving_app.py")
        shutil.copy(Path(__file__).with_name("app.py"), self.cluster.app)
        self.ledger = self.cluster.ledger
        self.executions = ExecutionTracker(self.ledger)
        self.client = Proxy(self.postgres.dsn)  # of the enqueuer
        self.server_free = threading.Lock()
        #: Pids of handlers that were frozen with their host, or had no supervisor.
        self.frozen: set[int] = set()
        self.cancelled: dict[int, tuple[str, int, int]] = {}  # job -> (answer, CLOCK_BOOTTIME, lease)
        self.cancelled_maybe: set[int] = set()  # a cancel was sent
        self.requeued: set[int] = set()
        self.hosts = [Host(self, index) for index in range(HOSTS)]

    # -- queries --------------------------------------------------------------------------------------------------

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self.postgres.dsn, autocommit=True, application_name="chaos", connect_timeout=5, **options
        )

    def asking(self, ask: Callable[[psycopg.Connection[Any]], T], patience: float = 60.0) -> T:
        """Run a query, and repeat it while the server is away. Only for queries that may be repeated."""
        give_up = time.monotonic() + patience
        while True:
            try:
                with self.connect() as conn:
                    conn.execute("SET statement_timeout = '15s'")
                    return ask(conn)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)

    def rows(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.asking(lambda conn: conn.execute(query, params or None).fetchall())

    def one(self, query: str, *params: Any) -> Any:
        found = self.rows(query, *params)
        return found[0][0] if found else None

    # -- observations ---------------------------------------------------------------------------------------------

    def recent(self, tail: int = 1 << 17) -> list[Entry]:
        """The end of the ledger."""
        try:
            with self.ledger.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - tail))
                lines = file.read().split(b"\n")[1 if file.tell() > tail else 0 : -1]
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            kind, *numbers = line.decode().split()
            if len(numbers) == 5:
                found.append(Entry(kind, *map(int, numbers)))
        return found

    def running(self) -> dict[int, Entry]:
        """Handlers that have begun and not ended according to the ledger, by pid."""
        begun: dict[int, Entry] = {}
        for entry in self.recent():
            if entry.kind == "START":
                begun[entry.pid] = entry
            else:
                begun.pop(entry.pid, None)
        return {pid: entry for pid, entry in begun.items() if os.path.exists(f"/proc/{pid}")}

    def entries(self) -> list[Entry]:
        return read(self.ledger)

    def leader(self) -> Host | None:
        pids = {row[0] for row in self.rows("SELECT pid FROM pgworkers.host WHERE leader")}
        return next((host for host in self.hosts if host.master.pid in pids), None)

    def busy_worker(self, draw: random.Random) -> Entry | None:
        """A worker that runs a job, of a host that no other fault uses now."""
        running = self.running()
        for host in draw.sample(self.hosts, len(self.hosts)):
            if host.free.locked():
                continue
            found = [pid for pid in host.master.worker_pids() if pid in running]
            if found:
                return running[draw.choice(found)]
        return None

    @contextmanager
    def taking(self, lock: threading.Lock, patience: float = 20.0) -> Iterator[bool]:
        taken = lock.acquire(timeout=patience)
        try:
            yield taken
        finally:
            if taken:
                lock.release()

    # -- repairs ---------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Repair all that faults may have left: stopped processes, paused queues, a full disk, a stopped server."""
        self.free_disk()
        self.postgres.start()
        for proxy in (self.client, *(host.proxy for host in self.hosts)):
            proxy.heal()
        for host in self.hosts:
            host.cont()
            host.ensure()
        self.asking(
            lambda conn: conn.execute(
                "UPDATE pgworkers.queue SET paused = false, workers = NULL WHERE paused OR workers IS NOT NULL"
            )
        )
        wait_for(
            lambda: all(host.ready() for host in self.hosts), timeout=240, what="three hosts with workers"
        )

    def free_disk(self) -> None:
        if self.postgres.disk is not None:
            (self.postgres.disk / "ballast").unlink(missing_ok=True)

    def close(self) -> list[str]:
        """Drain every host and stop the server. Returns what went wrong."""
        wrong = []
        for host in self.hosts:
            host.cont()
            if host.master.process.poll() is None:
                host.master.signal(signal.SIGTERM)
        for host in self.hosts:
            try:
                code = host.master.wait(30)
                if code != 0:
                    wrong.append(f"I12 {host.name} was drained and ended with {code}")
            except subprocess.TimeoutExpired:
                wrong.append(f"I12 {host.name} did not end within 30 s of SIGTERM")
                host.master.process.kill()
                host.master.wait(5)
        for master in self.cluster.masters:
            left = _left(master)
            wrong += [f"I13 left behind: {text}" for text in left]
        self.executions.close()
        for proxy in (self.client, *(host.proxy for host in self.hosts)):
            proxy.close()
        return wrong


def _left(master: Master) -> list[str]:
    try:
        wait_for(lambda: not master.processes(), timeout=5)
        return []
    except AssertionError:
        found = master.processes()
        for one in found:
            one.kill()
        return [f"{one.pid} {' '.join(one.cmdline())[:100]}" for one in found]


def _own_clock(directory: Path) -> ShiftedClock | None:
    try:
        return ShiftedClock(directory)
    except NoCompiler:
        return None


def _own_disk(home: Path) -> bool:
    """A file system of limited size, in a mount namespace that ends with this run: nothing is left behind."""
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS) != 0 or libc.mount(b"none", b"/", None, _PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"tmpfs", os.fsencode(home), b"tmpfs", 0, b"size=%d,mode=755" % DISK) == 0)
