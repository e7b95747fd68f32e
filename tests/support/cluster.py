"""Real masters for tests: start them, wait for facts, leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
from psycopg.pq import TransactionStatus
from support import leftover_processes

T = TypeVar("T")
#: Every job with the state of its row; the view `jobs` shows some running rows as claimed.
STORED = "SELECT id, state FROM pgworkers.job UNION ALL SELECT id, state FROM pgworkers.history"
STEP, LONGEST_STEP = 0.02, 0.1
MISBEHAVING_APP = Path(__file__).with_name("misbehaving_app.py")

#: Short timings: every test that starts hosts uses them.
FAST = {
    "PGWORKERS_RENEW_INTERVAL": "0.5s",
    "PGWORKERS_LEASE_DURATION": "5s",
    "PGWORKERS_RESCUE_INTERVAL": "0.5s",
    "PGWORKERS_STATEMENT_TIMEOUT": "1s",
    "PGWORKERS_CONNECT_TIMEOUT": "1s",
    "PGWORKERS_RECONNECT_MAX_DELAY": "0.5s",
    "PGWORKERS_PROMOTE_INTERVAL": "0.2s",
    "PGWORKERS_LEADERSHIP_INTERVAL": "0.2s",
    "PGWORKERS_POLL_INTERVAL": "0.5s",
    "PGWORKERS_DRAIN_TIMEOUT": "6s",
    "PGWORKERS_ASK_GRACE": "0.5s",
    "PGWORKERS_RAISE_GRACE": "0.5s",
    "PGWORKERS_HEARTBEAT_INTERVAL": "0.2s",
    "PGWORKERS_METRICS_ADDRESS": "off",
}

#: Runs until the turn of its lease (`Cluster.open_turn`); one that hangs does so in its first lease only.
TURNS = """
@app.task
def turns(ctx: Ctx, hangs: bool = False) -> int:
    note(ctx, "START")
    while (hangs and ctx.lease == 1) or not os.path.exists(f"{os.environ['PGWORKERS_LEDGER']}.{ctx.lease}"):
        time.sleep(0.02)
    note(ctx, "END")
    return ctx.lease
"""
#: For tests of what a host writes as it leaves: it gives that up after a statement timeout, and a busy server needs more.
UNHURRIED = {"PGWORKERS_LEASE_DURATION": "60s", "PGWORKERS_STATEMENT_TIMEOUT": "10s"}


def wait_for(fact: Callable[[], T], *, timeout: float = 60.0, what: str = "") -> T:
    """Poll until the fact is true. Returns its value. The timeout is generous, not a bound that is tested."""
    until = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        value = fact()
        if value:
            return value
        now = time.monotonic()
        if now > until:
            raise AssertionError(f"not within {timeout} s: {what or fact}; last: {value!r}")
        # Polling must not take the cores from the processes it waits for: it may use half of the time.
        time.sleep(min(max(STEP, now - asked), LONGEST_STEP))


class Master:
    """One `pgworkers run`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, marker: str) -> None:
        self.process = process
        self.pid = process.pid
        self.log_path = log
        self.marker = marker

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def terminate(self, timeout: float = 60.0) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def processes(self) -> list[psutil.Process]:
        """Every living process of this master's tree, found by its marker in /proc."""
        found = []
        for pid in leftover_processes.with_variable(leftover_processes.TREE_MARK, self.marker):
            try:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def titles(self, *contains: str) -> list[tuple[int, str]]:
        """Those with one of these words. A command line is not a title, even if it names a directory with such a word."""
        found = []
        for pid in leftover_processes.with_variable(leftover_processes.TREE_MARK, self.marker):
            title = " ".join(
                leftover_processes.look(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")
            )
            if title.startswith("pgworkers: ") and any(word in title for word in contains):
                found.append((pid, title))
        return sorted(found)

    def worker_pids(self, queue: str = "") -> list[int]:
        return [pid for pid, _ in self.titles(f"pgworkers: worker {queue}")]

    def supervisor_pids(self, queue: str = "") -> list[int]:
        return [pid for pid, _ in self.titles(f"pgworkers: queue {queue}")]


class Cluster:
    """The masters of one test, all on one database."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn = dsn
        self.directory = directory
        self.ledger = directory / "ledger"
        self.app = directory / "app.py"
        shutil.copy(MISBEHAVING_APP, self.app)
        self.masters: list[Master] = []
        self.enqueued: set[int] = set()  # each of them must be found in the tables when the test is over
        self.db = psycopg.connect(dsn, autocommit=True)

    def reconnect(self) -> None:
        """A new connection of the test itself, after the server was away."""
        self.db.close()

        def connected() -> bool:
            try:
                self.db = psycopg.connect(self.dsn, autocommit=True)
            except psycopg.OperationalError:
                return False
            return True

        wait_for(connected, what="the server is back")

    def start(
        self,
        *args: str,
        queues: str = "default:2",
        dsn: str | None = None,
        wait: bool = True,
        cgroup: Path | None = None,
        prefix: tuple[str, ...] = (),
        stdout: int | None = None,
        **environ: str,
    ) -> Master:
        """Start a master and wait for its workers.

        `cgroup`: a directory of the kernel's that it enters first; `prefix`: a command that starts it; `stdout`: a
        descriptor for its lines, instead of the file that has what workers print.
        """
        marker = uuid.uuid4().hex
        log = self.directory / f"master{len(self.masters)}.log"
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PG", "DATABASE_URL")) or k == "PGWORKERS_TEST_RUN"
        }
        env |= (
            FAST
            | {
                "PGWORKERS_LEDGER": str(self.ledger),
                "PGWORKERS_DSN": dsn or self.dsn,
                "APP_QUEUES": queues,
                leftover_processes.TREE_MARK: marker,
            }
            | environ
        )
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', f"{cgroup}/cgroup.procs"] if cgroup else []
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*enter, *prefix, sys.executable, "-m", "pgworkers", "-c", str(self.app), "run", *args],
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=out,
                env=env,
                cwd=self.directory,
            )
        master = Master(process, log, marker)
        self.masters.append(master)
        if wait:
            wanted = sum(int(part.split(":")[1]) for part in queues.split(","))
            wait_for(
                lambda: process.poll() is not None or len(master.titles("idle", "#")) >= wanted,
                timeout=60,
                what=f"workers of {log}",
            )
            assert process.poll() is None, master.log()
        return master

    def enqueue(self, task: str, count: int = 1, queue: str = "default", **options: Any) -> list[int]:
        """Enqueue by SQL; the ids."""
        args = psycopg.types.json.Jsonb(options.pop("args", {}))
        names = "".join(f", {name} => %({name})s" for name in options)
        rows = self.db.execute(
            f"SELECT (pgworkers.enqueue(%(task)s, %(args)s, %(queue)s{names})).id FROM generate_series(1, %(count)s)",
            {"count": count, "task": task, "args": args, "queue": queue, **options},
        ).fetchall()
        if self.db.info.transaction_status == TransactionStatus.IDLE:  # else the test may still roll it back
            self.enqueued.update(row[0] for row in rows)
        return [row[0] for row in rows]

    def open_gate(self) -> None:
        """Let the `gate` jobs end."""
        Path(f"{self.ledger}.open").touch()

    def open_turn(self, lease: int) -> None:
        """Let the `turns` jobs end that run with this lease."""
        Path(f"{self.ledger}.{lease}").touch()

    def close_gate(self) -> None:
        Path(f"{self.ledger}.open").unlink()

    def declare(self, text: str) -> None:
        """More of the app; before its masters start."""
        self.app.write_text(f"{self.app.read_text()}\n\n{text}\n")

    def leader(self) -> Master | None:
        """The living host that says it leads."""
        pids = {row[0] for row in self.db.execute("SELECT pid FROM pgworkers.host WHERE leader")}
        return next((m for m in self.masters if m.pid in pids and m.process.poll() is None), None)

    def state(self, job: int) -> str | None:
        """As it is stored: running from the claim on."""
        row = self.db.execute(f"SELECT state::text FROM ({STORED}) s WHERE id = %s", (job,)).fetchone()
        return row[0] if row else None

    def row(self, job: int) -> dict[str, Any]:
        cursor = self.db.cursor(row_factory=psycopg.rows.dict_row)
        row = cursor.execute("SELECT * FROM pgworkers.jobs WHERE id = %s", (job,)).fetchone()
        assert row is not None, f"job {job} is gone"
        return {**row, "state": self.state(job)}

    def attempts(self, job: int) -> list[dict[str, Any]]:
        cursor = self.db.cursor(row_factory=psycopg.rows.dict_row)
        return cursor.execute(
            "SELECT * FROM pgworkers.attempt WHERE job_id = %s ORDER BY lease", (job,)
        ).fetchall()

    def counts(self) -> dict[str, int]:
        return dict(self.db.execute(f"SELECT state::text, count(*) FROM ({STORED}) s GROUP BY 1").fetchall())

    def until(self, job: int, state: str, timeout: float = 60.0) -> dict[str, Any]:
        wait_for(lambda: self.state(job) == state, timeout=timeout, what=f"job {job} {state}")
        return self.row(job)

    def until_all_ended(self, timeout: float = 60.0) -> dict[str, int]:
        wait_for(
            lambda: self.db.execute("SELECT count(*) = 0 FROM pgworkers.job").fetchone() == (True,),
            timeout=timeout,
            what="all jobs ended",
        )
        return self.counts()

    def close(self) -> None:
        """End every master by pid and make sure nothing of its tree is left."""
        left: list[str] = []
        for master in self.masters:
            if master.process.poll() is None:
                master.signal(signal.SIGCONT)
                master.signal(signal.SIGQUIT)
                try:
                    master.wait(40)
                except subprocess.TimeoutExpired:
                    left.append(f"master {master.pid} did not leave on SIGQUIT:\n{master.log()[-3000:]}")
                    master.process.kill()
                    master.wait(30)
        for master in self.masters:
            try:
                wait_for(lambda m=master: not m.processes(), timeout=30)
            except AssertionError:
                for process in master.processes():
                    try:
                        left.append(f"left behind: {process.pid} {process.cmdline()}")
                        process.kill()
                    except psutil.NoSuchProcess:
                        continue
        self.db.close()
        for master in self.masters:  # pytest shows it when the test failed
            print(f"--- log of master {master.pid}\n{master.log()[-4000:]}")
        assert not left, "\n".join(left)


def children(pid: int) -> Iterator[psutil.Process]:
    yield from psutil.Process(pid).children(recursive=True)
