"""Retries for DDL that cannot get its locks, with the names of the sessions that hold them.

A statement that waits for an exclusive lock makes every later user of the table wait behind it. So DDL waits only a second
at a time, and the others get through between two attempts. The holder of a lock is known only while we wait for it, so a
second session asks for it then.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.errors import DeadlockDetected, LockNotAvailable

from pgworkers.clock import monotonic
from pgworkers.errors import DatabaseUnreachable
from pgworkers.postgres.statements import Query, Statement, run
from pgworkers.units import format_duration

LOCK_TIMEOUT_SECONDS = 1.0
#: Between two attempts, for the sessions that queued behind the last one.
RETRY_PAUSE_SECONDS = 1.0
MAX_LOCK_WAIT_SECONDS = 15 * 60.0
#: A line about the same holders is repeated after this long.
REPEAT_MESSAGE_SECONDS = 30.0
FIRST_BLOCKER_QUERY_SECONDS = 0.2
BLOCKER_QUERY_INTERVAL_SECONDS = 0.2
#: Errors of an attempt that may succeed later.
LOCK_ERRORS = (LockNotAvailable, DeadlockDetected)

_BLOCKERS = Statement.from_file(__file__, "lock_wait_blockers")


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that holds a lock we wait for, or waits for it in front of us."""

    pid: int
    application: str | None
    state: str | None
    query_age: float | None
    is_holder: bool

    def __str__(self) -> str:
        if self.pid == 0:
            return "a prepared transaction (see pg_prepared_xacts)"
        age = f"query {format_duration(self.query_age)} old" if self.query_age is not None else ""
        facts = [fact for fact in (self.application, self.state, age) if fact]
        return f"pid {self.pid}" + (f" ({', '.join(facts)})" if facts else "")


class LockRetry:
    """Retries after failed attempts to get a lock: which sessions held it, and how long to go on."""

    def __init__(self, on_message: Callable[[str], None], max_wait: float) -> None:
        self._on_message = on_message
        self._max_wait = max_wait
        self._seconds_left = max_wait
        self._attempted_at = monotonic()
        self._last_message: tuple[frozenset[int], float] | None = None
        self.blockers: list[Blocker] = []

    @contextmanager
    def recording_blockers(self, conn: psycopg.Connection[Any]) -> Iterator[None]:
        """Record the sessions that block the statements of this block, in a transaction of `conn`."""
        self._attempted_at = monotonic()
        self.blockers = []
        row = conn.execute(
            "SELECT pg_catalog.pg_backend_pid()"
        ).fetchone()  # a pooler's own number is another
        assert row is not None
        done = threading.Event()
        watcher = threading.Thread(target=self._poll_blockers, args=(conn.info, row[0], done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def pause(self, what: str, error: psycopg.Error) -> None:
        """Wait before the next attempt of `what`; DatabaseUnreachable when the time for failed attempts is over."""
        now = monotonic()
        self._seconds_left -= now - self._attempted_at
        holders = " and ".join(map(str, self.blockers)) or "another session"
        if self._seconds_left <= 0:
            raise DatabaseUnreachable(
                f"{what} did not get its locks within {format_duration(self._max_wait)}: {holders} had one of them; "
                "it changed nothing; end that transaction, then run pgworkers migrate up"
            ) from error
        pids = frozenset(blocker.pid for blocker in self.blockers)
        if (
            self._last_message is None
            or self._last_message[0] != pids
            or now - self._last_message[1] > REPEAT_MESSAGE_SECONDS
        ):
            self._on_message(
                f"{what} waits for a lock of {holders}; trying for {format_duration(self._seconds_left)}"
            )
            self._last_message = pids, now
        seconds = min(RETRY_PAUSE_SECONDS * random.uniform(0.5, 1.0), self._seconds_left)
        self._seconds_left -= seconds
        time.sleep(seconds)

    def _poll_blockers(self, info: psycopg.ConnectionInfo, pid: int, done: threading.Event) -> None:
        if done.wait(FIRST_BLOCKER_QUERY_SECONDS):
            return
        query = Query(_BLOCKERS, {"pid": pid}, _holders_first, record=Blocker)
        try:
            with psycopg.connect(
                make_conninfo(info.dsn, password=info.password or None), autocommit=True
            ) as conn:
                while True:
                    self.blockers = run(conn, "pgworkers", query) or self.blockers
                    if done.wait(BLOCKER_QUERY_INTERVAL_SECONDS):
                        return
        except psycopg.Error:
            return  # the lines say "another session"


def _holders_first(found: list[Blocker]) -> list[Blocker]:
    """The holders of the lock. Sessions that only wait for it are returned if there is no holder."""
    return [blocker for blocker in found if blocker.is_holder] or found
