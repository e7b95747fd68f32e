"""What every proof stands on: a server of its own, a database each, masters with production timings, findings."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from support.cluster import Cluster, Master, wait_for
from support.server import Server, migrated

import pgworkers
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.postgres.statements import Statement

PACKAGE = Path(pgworkers.__file__).parent
#: Statements that only a leader sends, by the file that holds them.
DUTIES = (
    "job/due_duties",
    "job/gauge_depth",
    "job/promote",
    "job/expire",
    "job/rescue",
    "job/host_prune",
    "schedule/fire_due",
    "job/batch_settle_open",
)
LOCK = (
    "SELECT l.pid FROM pg_locks l WHERE locktype = 'advisory' AND granted AND classid = 1885828967"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@dataclass(frozen=True)
class Finding:
    """One line of the table. `measured` None: it could not be tried, `note` says why."""

    claim: str
    bound: str
    measured: str | None
    holds: bool
    note: str = ""


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def beginning(statement: str) -> str:
    """What the server sees of a statement before its first parameter."""
    room, name = statement.split("/")
    rendered = Statement.from_file(str(PACKAGE / room / "__init__.py"), name).render("pgworkers")
    return rendered.decode().split("%(")[0]


class ProofCluster(Cluster):
    """The masters of one proof on one database."""

    def __init__(self, dsn: str, directory: Path, log: Path) -> None:
        super().__init__(dsn, directory)
        self._log = log
        self.deaths: dict[int, int] = {}  # pid -> when it was certainly dead, CLOCK_BOOTTIME

    def declare(self, text: str) -> None:
        self.app.write_text(f"{self.app.read_text()}\n\n{text}\n")

    def host(
        self,
        queues: str = "default:2",
        *,
        wait: bool = True,
        enter: Sequence[str] = (),
        dsn: str | None = None,
        package: Path = PACKAGE,
    ) -> Master:
        """One more host. `enter`: a command that it is run by; `package`: which pgworkers it runs."""
        marker = uuid.uuid4().hex
        log = self.directory / f"master{len(self.masters)}.log"
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "DATABASE_URL"))}
        env |= {
            "PGWORKERS_LEDGER": str(self.ledger),
            "PGWORKERS_DSN": dsn or self.dsn,
            "PGWORKERS_METRICS_ADDRESS": "off",
            "APP_QUEUES": queues,
            "TREE_MARK": marker,
            "PYTHONPATH": str(package.parent),
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*enter, sys.executable, "-m", "pgworkers", "-c", str(self.app), "run"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self.directory,
            )
        master = Master(process, log, marker)
        self.masters.append(master)
        if wait:
            wanted = sum(int(part.split(":")[1]) for part in queues.split(","))
            wait_for(lambda: len(master.worker_pids()) >= wanted, timeout=60, what="its workers")
        return master

    def living(self) -> list[Master]:
        return [master for master in self.masters if master.process.poll() is None]

    def leader(self) -> Master | None:
        """The living host that says it leads."""
        pids = {row[0] for row in self.db.execute("SELECT pid FROM pgworkers.host WHERE leader")}
        return next((master for master in self.living() if master.pid in pids), None)

    def holders(self) -> list[int]:
        """Sessions that hold the leader's lock."""
        return [row[0] for row in self.db.execute(LOCK).fetchall()]

    def one(self, query: str, *params: Any) -> Any:
        row = self.db.execute(query, params).fetchone()
        return row[0] if row else None

    def kill_worker(self, draw: random.Random, showing: str = " #") -> bool:
        """SIGKILL a worker whose title says so; False: there was none."""
        busy = [pid for master in self.living() for pid, _ in master.titles(showing)]
        if not busy:
            return False
        pid = draw.choice(busy)
        try:
            self.deaths[pid] = boottime()
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            del self.deaths[pid]
            return False
        return True

    def kill_host(self, master: Master) -> None:
        """SIGKILL the master, and wait until its whole tree is gone."""
        workers = master.worker_pids()
        master.signal(signal.SIGKILL)
        master.wait()
        wait_for(lambda: not master.processes(), what="its tree is gone")
        self.deaths |= dict.fromkeys(workers, boottime())

    def log_statements(self) -> None:
        """Sessions from now on have every statement in the server's log."""
        name = psycopg.sql.Identifier(self.db.info.dbname)
        self.db.execute(psycopg.sql.SQL("ALTER DATABASE {} SET log_statement = 'all'").format(name))

    def duties(self) -> list[tuple[datetime, int]]:
        """(when, session) of every statement that only leaders send, from the server's log."""
        return self._logged(tuple(beginning(statement) for statement in DUTIES))

    def logged(self, beginning: str) -> list[datetime]:
        """When a statement was sent."""
        return [at for at, _ in self._logged((beginning,))]

    def _logged(self, marks: tuple[str, ...]) -> list[tuple[datetime, int]]:
        found = []
        for file in sorted(self._log.glob("*.json")):
            for line in file.read_text(errors="replace").splitlines():
                entry = json.loads(line) if line.endswith("}") else {}
                message = entry.get("message", "")
                if entry.get("dbname") == self.db.info.dbname and any(mark in message for mark in marks):
                    at = datetime.fromisoformat(entry["timestamp"].removesuffix(" UTC"))
                    found.append((at, entry["pid"]))
        return sorted(found)

    def began(self, *words: str) -> subprocess.Popen[str]:
        """`pgworkers WORDS` on this database, just begun."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "DATABASE_URL"))}
        return subprocess.Popen(
            [sys.executable, "-m", "pgworkers", "--dsn", self.dsn, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env=env | {"PYTHONPATH": str(PACKAGE.parent)},
        )

    def command(self, *words: str, code: int | None = 0) -> str:
        """The output of `pgworkers WORDS`."""
        process = self.began(*words)
        said, _ = process.communicate(timeout=60)
        assert code in (None, process.returncode), f"{words} ended with {process.returncode}: {said}"
        return said


class ProofServer:
    """The server of a run."""

    def __init__(self, home: Path, listen: str = "") -> None:
        self._home = home
        options = {
            "listen_addresses": listen,
            "logging_collector": "on",
            "log_destination": "jsonlog",
            "log_timezone": "UTC",
            "log_directory": "log",
            "max_connections": "300",
            "timezone": "UTC",
        }
        self._embedded = EmbeddedServer(home / "pg", options=options, stores=(home / "store",))
        self._server = Server(self._embedded.acquire(), uuid.uuid4().hex[:8])
        self.data = self._embedded.status().data

    @contextmanager
    def cluster(self) -> Iterator[ProofCluster]:
        """A database with a directory; afterwards every host has ended and left nothing."""
        name = self._server.create()
        directory = self._home / name
        directory.mkdir(mode=0o755)
        dsn = self._server.dsn(name)
        migrated(dsn, "pgworkers")
        cluster = ProofCluster(dsn, directory, self.data / "log")
        quiet = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - closed below
        try:
            yield cluster
        finally:
            stdout, sys.stdout = sys.stdout, quiet  # the logs of the hosts are for failed tests
            try:
                cluster.close()
            finally:
                sys.stdout = stdout
                quiet.close()
            self._server.drop(name)

    def close(self) -> None:
        self._embedded.release()


def timed(fact: Callable[[], Any], *, timeout: float, what: str) -> float:
    """Seconds until the fact is true."""
    began = time.monotonic()
    wait_for(fact, timeout=timeout, what=what)
    return time.monotonic() - began


def within(claim: str, limit: float, took: Sequence[float], note: str = "") -> Finding:
    """Each of these times is below the limit."""
    measured = (
        f"{max(took):.2f} s"
        if len(took) == 1
        else f"{min(took):.2f} to {max(took):.2f} s ({len(took)} times)"
    )
    return Finding(claim, f"{limit:g} s", measured, max(took) <= limit, note)
