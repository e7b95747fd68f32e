"""The database behind `top`, asked in threads: a server that does not answer must not freeze the screen."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg

from pgworkers.cli import asking
from pgworkers.cli.place import Database
from pgworkers.cli.top_keys import Act
from pgworkers.cli.top_model import Picture
from pgworkers.cli.top_rows import DEEPEST
from pgworkers.errors import PgworkersError
from pgworkers.job import cancel, depth, operation
from pgworkers.job import queue as queues
from pgworkers.job.watch import watch
from pgworkers.postgres import connect
from pgworkers.postgres.statements import run

MOST = 2000  #: workers that are read
#: Hosts are told that somebody looks this often; they believe it three times as long.
TELL = 3.0
REST = 1.0


def look(db: Database, *, tell: bool) -> Picture:
    """One refresh: two statements, both bounded."""
    hosts, workers = run(db.conn, db.schema, watch(MOST + 1, tell=tell))
    depths = run(db.conn, db.schema, depth.depth(DEEPEST))
    return Picture(hosts, workers[:MOST], depths, cut=len(workers) > MOST)


def do(db: Database, act: Act) -> str:
    """What came of it, in a line; for `stack` the stack."""
    if act.queue is not None:
        verb, told = (queues.pause, "paused") if act.kind == "pause" else (queues.resume, "resumed")
        done = run(db.conn, db.schema, verb(act.queue))
        return f"queue {act.queue} {told}" if done else f"queue {act.queue} is not declared"
    assert act.job is not None
    if act.kind == "cancel":
        answered = run(db.conn, db.schema, cancel.cancel(act.job, operation.note("from top")))
        return f"#{act.job} {answered or 'does not exist'}"
    answer = asking.of_job(db, act.kind, act.job)
    if answer.done is None:
        return f"#{act.job}: its host did not answer"
    return answer.text or "" if act.kind == "stack" and answer.done else f"#{act.job} {answer.text}"


class _Part(threading.Thread):
    """A thread with a connection of its own, made again when it is lost; what it learns is put where the screen looks."""

    def __init__(self, db: Database, put: Callable[[str, Any], None], name: str) -> None:
        super().__init__(name=f"pgworkers-top-{name}", daemon=True)
        self._db = db
        self._put = put
        self._own: Database | None = None

    def _connected(self) -> Database:
        if self._own is None or self._own.conn.closed:
            conn = connect.connect(self._db.settings, self._db.dsn, "cli")
            self._own = replace(self._db, conn=conn)
        return self._own

    def _lose(self) -> None:
        if self._own is not None:
            with contextlib.suppress(Exception):
                self._own.conn.close()
        self._own = None


class Reader(_Part):
    """A picture every `interval`, and at once when asked."""

    def __init__(self, db: Database, put: Callable[[str, Any], None], interval: float) -> None:
        super().__init__(db, put, "reader")
        self._interval = interval
        self._wake = threading.Event()

    def poke(self) -> None:
        self._wake.set()

    def run(self) -> None:
        told = 0.0
        while True:
            began = time.monotonic()
            try:
                tell = began - told >= TELL
                picture = look(self._connected(), tell=tell)
                told = began if tell else told
                self._put("picture", picture)
                pause = self._interval
            except (psycopg.Error, PgworkersError) as error:
                self._lose()
                self._put("lost", _first(error))
                pause = max(REST, self._interval)
            self._wake.wait(max(0.05, pause - (time.monotonic() - began)))
            self._wake.clear()


class Actor(_Part):
    """Does one thing after the other; a host that does not answer delays only the next."""

    def __init__(self, db: Database, put: Callable[[str, Any], None]) -> None:
        super().__init__(db, put, "actor")
        self._acts: queue.Queue[Act] = queue.Queue()

    def ask(self, act: Act) -> None:
        self._acts.put(act)

    def run(self) -> None:
        while True:
            act = self._acts.get()
            try:
                self._put("done", (act, do(self._connected(), act)))
            except (psycopg.Error, PgworkersError) as error:
                self._lose()
                self._put("done", (replace(act, kind=f"{act.kind} failed"), f"{act.named}: {_first(error)}"))


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class News:
    """What the threads learned, and a descriptor that wakes the screen."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._items: queue.Queue[tuple[str, Any]] = queue.Queue()

    def put(self, kind: str, what: Any) -> None:
        self._items.put((kind, what))
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b".")

    def take(self) -> list[tuple[str, Any]]:
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
        found = []
        while not self._items.empty():
            found.append(self._items.get())
        return found
