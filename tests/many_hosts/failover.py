"""Failover: a primary with a streaming standby, crashed under load and replaced by it; what was lost, and what ran again.

The two servers listen on Unix sockets only; hosts and enqueuers name both (`host=/a,/b target_session_attrs=read-write`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import make_conninfo
from support.cluster import FAST, Cluster, wait_for
from support.ledger import audit, read
from support.server import migrated

from many_hosts.environment import PACKAGE, Finding, boottime
from pgworkers.embedded import account as accounts
from pgworkers.embedded import binaries

PORT = 5432
LOAD = 6.0  # seconds before the crash
AFTER = 4.0  # and after the promotion
LAG = 1.5  # seconds that the standby's receiver is stopped before an asynchronous crash, so that some commits are lost
OUTAGE = 2.0  # seconds without a primary: handlers end meanwhile, and the sessions of a host come back one after the other
MASTERS = 2
WORKERS = 10  # of each: a third of the jobs takes two seconds, and is running when their ids are given again
OPTIONS = {
    "listen_addresses": "",
    "wal_level": "replica",
    "max_wal_senders": "5",
    "hot_standby": "on",
    "fsync": "off",  # the machine stays up; what counts is what the standby has
    "max_connections": "100",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",
}


class Node:
    """One server, run by pg_ctl as an account that may."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o755)
        self._account = accounts.choose_account(home, None)
        self._programs = binaries.find_binaries(self._account, None, (home / "store",), None)
        self.data, self.socket = home / "data", home / "s"
        accounts.make_private(self.socket, self._account)
        accounts.make_private(self.data, self._account)

    def initialise(self) -> None:
        self._do(
            "initdb",
            "--pgdata",
            self.data,
            "--username",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
        )

    def copy(self, primary: Node) -> None:
        """A standby of that one."""
        words = (
            "--pgdata",
            self.data,
            "--host",
            primary.socket,
            "--username",
            "postgres",
            "--write-recovery-conf",
        )
        self._do("pg_basebackup", *words, "--checkpoint=fast", "--no-sync")

    def start(self, **options: str) -> None:
        settings = OPTIONS | {"unix_socket_directories": str(self.socket), "port": str(PORT)} | options
        text = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        self._do("pg_ctl", "start", "-w", "-t", "60", "-D", self.data, "-l", self.data / "log", "-o", text)

    def crash(self) -> None:
        self._do("pg_ctl", "stop", "-m", "immediate", "-D", self.data)

    def promote(self) -> None:
        self._do("pg_ctl", "promote", "-w", "-t", "60", "-D", self.data)

    def stop(self) -> None:
        accounts.run_as(
            self._account, [self._programs.program("pg_ctl"), "stop", "-m", "fast", "-D", self.data]
        )

    def dsn(self, database: str = "postgres") -> str:
        return make_conninfo(host=str(self.socket), port=PORT, user="postgres", dbname=database)

    def receiver(self) -> int:
        """The process that receives the log of the primary."""
        pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        return next(
            child.pid
            for child in psutil.Process(pid).children()
            if "walreceiver" in " ".join(child.cmdline()) or "wal receiver" in " ".join(child.cmdline())
        )

    def _do(self, program: str, *words: str | Path) -> None:
        said = accounts.run_as(self._account, [self._programs.program(program), *words])
        assert said is not None, (
            f"{program} {' '.join(map(str, words))[:200]} failed; see {self.data / 'log'}"
        )


@dataclass
class Enqueuer:
    """Enqueues one by one and notes what was acknowledged, with the time of the answer.

    Each job carries a token of ours, which its handler returns: an id whose commit was lost is given again by the new
    primary, to another job, and that one must end with its own token.
    """

    dsn: str
    acknowledged: dict[str, int] = field(default_factory=dict)  # token -> CLOCK_BOOTTIME
    ids: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Enqueuer:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(60)

    def _run(self) -> None:
        conn: psycopg.Connection[Any] | None = None
        while not self._end.is_set():
            try:
                conn = conn or psycopg.connect(self.dsn, autocommit=True, connect_timeout=2)
                token = uuid.uuid4().hex
                row = conn.execute(
                    "SELECT id FROM pgworkers.enqueue('work',"
                    " jsonb_build_object('seconds', CASE WHEN random() < 0.3 THEN 2 ELSE 0.05 * random() END,"
                    " 'value', %s::text),"
                    " max_attempts => 1000, max_crashes => 1000, meta => jsonb_build_object('token', %s::text))",
                    [token, token],
                ).fetchone()
                assert row is not None
                self.acknowledged[token], self.ids[token] = boottime(), row[0]
            except psycopg.Error:
                self.unknown += conn is not None
                if conn is not None:
                    conn.close()
                conn = None
                time.sleep(0.1)
            time.sleep(0.01)
        if conn is not None:
            conn.close()


@contextmanager
def pair(home: Path, *, synchronous: bool) -> Iterator[tuple[Node, Node]]:
    primary, standby = Node(home / "a"), Node(home / "b")
    primary.initialise()
    primary.start()
    try:
        with psycopg.connect(primary.dsn(), autocommit=True) as conn:
            conn.execute("CREATE DATABASE pgworkers")
        migrated(primary.dsn("pgworkers"), "pgworkers")
        standby.copy(primary)
        standby.start()
        try:
            with psycopg.connect(primary.dsn(), autocommit=True) as conn:
                wait_for(
                    lambda: (
                        conn.execute(
                            "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
                        ).fetchone()
                        == (1,)
                    ),
                    what="the standby streams",
                )
                if synchronous:
                    conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                    conn.execute("SELECT pg_reload_conf()")
                    wait_for(
                        lambda: (
                            conn.execute("SELECT sync_state FROM pg_stat_replication").fetchone() == ("sync",)
                        ),
                        what="the standby is synchronous",
                    )
            yield primary, standby
        finally:
            standby.stop()
    finally:
        primary.stop()


def failover(home: Path, *, synchronous: bool) -> tuple[list[Finding], dict[str, Any]]:
    """One crash and promotion under load."""
    name = "synchronous" if synchronous else "asynchronous"
    with pair(home, synchronous=synchronous) as (primary, standby):
        both = make_conninfo(
            host=f"{primary.socket},{standby.socket}",
            port=f"{PORT},{PORT}",
            user="postgres",
            dbname="pgworkers",
        )
        cluster = Cluster(primary.dsn("pgworkers"), home)
        try:
            more = FAST | {"PYTHONPATH": str(PACKAGE.parent), "PGWORKERS_RECONNECT_MAX_DELAY": "3s"}
            for _ in range(MASTERS):
                cluster.start(
                    queues=f"default:{WORKERS}",
                    dsn=both,
                    wait=False,
                    **more,
                )
            wait_for(
                lambda: all(len(master.worker_pids()) >= WORKERS for master in cluster.masters),
                timeout=120,
                what="the workers of both hosts",
            )
            with Enqueuer(make_conninfo(both, target_session_attrs="read-write")) as load:
                time.sleep(LOAD)
                receiver = standby.receiver()
                if not synchronous:
                    os.kill(receiver, signal.SIGSTOP)
                    stopped = boottime()
                    time.sleep(LAG)
                crashed = boottime()
                primary.crash()
                if not synchronous:  # what lies unread in its socket is lost with it
                    os.kill(receiver, signal.SIGKILL)
                time.sleep(OUTAGE)
                promoting = boottime()
                standby.promote()
                leads, promoted = boottime(), time.monotonic()
                count = len(load.acknowledged)
                wait_for(
                    lambda: len(load.acknowledged) > count + 5, timeout=60, what="enqueues on the new primary"
                )
                enqueued_after = time.monotonic() - promoted
                time.sleep(AFTER)
            cluster.dsn = standby.dsn("pgworkers")
            cluster.reconnect()
            cluster.until_all_ended(timeout=90)
            there = dict(cluster.db.execute("SELECT id, meta->>'token' FROM pgworkers.jobs").fetchall())
            lost = set(load.acknowledged) - set(there.values())
            wrong_results = _wrong_results(cluster.db)
            ended = _succeeded(cluster.db)
            unfinished = [
                token for token, at in load.acknowledged.items() if at > leads and token not in ended
            ]
            entries = read(cluster.ledger)
            starts: dict[int, int] = {}
            for one in entries:
                if one.kind == "START":
                    starts[one.job] = starts.get(one.job, 0) + 1
            wrong = audit(cluster.db, cluster.ledger, there)
            first = min((one.at for one in entries if one.kind == "START" and one.at > leads), default=leads)
            figures = {
                "jobs acknowledged": len(load.acknowledged),
                "acknowledged before the crash": sum(at < crashed for at in load.acknowledged.values()),
                "outcomes unknown": load.unknown,
                "lost": len(lost),
                "ids of lost jobs that were given again": sum(load.ids[token] in there for token in lost),
                "ended with the result of another job": len(wrong_results),
                "run more than once": sum(count > 1 for count in starts.values()),
                "promotion took (s)": round((leads - promoting) / 1e9, 2),
                "first start after the promotion (s)": round((first - leads) / 1e9, 2),
                "enqueues again after the promotion (s)": round(enqueued_after, 2),
                "audit": wrong[:20],
            }
        finally:
            with (
                open(os.devnull, "w") as quiet,
                redirect_stdout(quiet),
            ):  # the logs of hosts are for failed tests
                cluster.close()
    own = [
        Finding(
            f"{name} failover: jobs that ended with the result of another job",
            "0",
            str(len(wrong_results)),
            not wrong_results,
            "; ".join(wrong_results[:3]),
        ),
        Finding(
            f"{name} failover: jobs that the new primary acknowledged and that did not succeed",
            "0",
            str(len(unfinished)),
            not unfinished,
        ),
    ]
    if synchronous:
        return [
            *own,
            Finding(
                f"{name} failover: acknowledged jobs that are lost",
                "0",
                str(len(lost)),
                not lost,
                _note(figures),
            ),
            Finding(
                f"{name} failover: the audit of the new primary",
                "empty",
                f"{len(wrong)} wrong",
                not wrong,
                "; ".join(wrong[:3]),
            ),
        ], figures
    window = (crashed - stopped) / 1e9
    outside = [token for token in lost if load.acknowledged[token] < stopped - int(0.5e9)]
    figures["window (s)"] = round(window, 2)
    wrong = [text for text in wrong if not _of_lost_commits(text)]
    return [
        *own,
        Finding(
            f"{name} failover, the standby {window:.1f} s behind: acknowledged jobs lost outside of that window",
            "0",
            str(len(outside)),
            not outside,
            _note(figures),
        ),
        Finding(
            f"{name} failover: acknowledged jobs lost inside of it, so that there was a window",
            "> 0",
            str(len(lost) - len(outside)),
            len(lost) > len(outside),
        ),
        Finding(
            f"{name} failover: the audit of the new primary, without what lost commits explain",
            "empty",
            f"{len(wrong)} wrong",
            not wrong,
            "; ".join(wrong[:3]),
        ),
    ], figures


def _wrong_results(db: psycopg.Connection[Any]) -> list[str]:
    """Jobs in whose row the result of another one stands."""
    found = db.execute(
        "SELECT id, lease, meta->>'token', result FROM pgworkers.history"
        " WHERE state = 'succeeded' AND result IS DISTINCT FROM meta->'token' ORDER BY id"
    ).fetchall()
    return [f"job {id} (lease {lease}) of {token} returned {result}" for id, lease, token, result in found]


def _succeeded(db: psycopg.Connection[Any]) -> set[str]:
    """The tokens of the jobs that did."""
    found = db.execute("SELECT meta->>'token' FROM pgworkers.history WHERE state = 'succeeded'").fetchall()
    return {token for (token,) in found}


def _of_lost_commits(text: str) -> bool:
    """Claims and ends of the window are gone with it: their executions are in the ledger and in no table."""
    return text.startswith(("I2", "I5", "I6"))


def _note(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.items() if name not in ("audit", "lost"))
