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

from pgworkers.cli import host_requests
from pgworkers.cli.database import OpenDatabase
from pgworkers.cli.top.keys import Action
from pgworkers.cli.top.model import Snapshot
from pgworkers.cli.top.rows import MAX_COUNTED_JOBS
from pgworkers.errors import PgworkersError
from pgworkers.job import cancel, gauges, operations, queues
from pgworkers.job.queries import overview
from pgworkers.postgres import connect

MAX_WORKERS_READ = 2000  #: workers that are read
#: Seconds between two notifications that the process view is watched. A host refreshes its view for 10 s after one.
WATCH_NOTIFY_SECONDS = 3.0
RECONNECT_PAUSE_SECONDS = 1.0


def read_snapshot(db: OpenDatabase, *, should_notify_hosts: bool) -> Snapshot:
    """One refresh: two statements, both bounded."""
    hosts, workers = db.run(overview(MAX_WORKERS_READ + 1, should_notify_hosts=should_notify_hosts))
    depths = db.run(gauges.count_depth(MAX_COUNTED_JOBS))
    return Snapshot(hosts, workers[:MAX_WORKERS_READ], depths, is_truncated=len(workers) > MAX_WORKERS_READ)


def perform_action(db: OpenDatabase, act: Action) -> str:
    """What came of it, in a line; for `stack` the stack."""
    if act.queue is not None:
        verb, told = (
            (queues.pause_queue, "paused") if act.kind == "pause" else (queues.resume_queue, "resumed")
        )
        done = db.run(verb(act.queue))
        return f"queue {act.queue} {told}" if done else f"queue {act.queue} is not declared"
    assert act.job is not None
    if act.kind == "cancel":
        answered = db.run(cancel.cancel(act.job, operations.make_note("from top")))
        return f"#{act.job} {answered or 'does not exist'}"
    answer = host_requests.request_for_job(db, act.kind, act.job)
    if answer.is_done is None:
        return f"#{act.job}: its host did not answer"
    return answer.text or "" if act.kind == "stack" and answer.is_done else f"#{act.job} {answer.text}"


class _DatabaseThread(threading.Thread):
    """A thread with a connection of its own, made again when it is lost; what it learns is put where the screen looks."""

    def __init__(self, db: OpenDatabase, put: Callable[[str, Any], None], name: str) -> None:
        super().__init__(name=f"pgworkers-top-{name}", daemon=True)
        self._db = db
        self._put = put
        self._database: OpenDatabase | None = None

    def _connected(self) -> OpenDatabase:
        if self._database is None or self._database.conn.closed:
            conn = connect.connect(self._db.settings, self._db.dsn, "cli")
            self._database = replace(self._db, conn=conn)
        return self._database

    def _disconnect(self) -> None:
        if self._database is not None:
            with contextlib.suppress(Exception):
                self._database.conn.close()
        self._database = None


class SnapshotReader(_DatabaseThread):
    """A picture every `interval`, and at once when asked."""

    def __init__(self, db: OpenDatabase, put: Callable[[str, Any], None], interval: float) -> None:
        super().__init__(db, put, "reader")
        self._interval = interval
        self._wake = threading.Event()

    def refresh_now(self) -> None:
        self._wake.set()

    def run(self) -> None:
        told = 0.0
        while True:
            began = time.monotonic()
            try:
                tell = began - told >= WATCH_NOTIFY_SECONDS
                picture = read_snapshot(self._connected(), should_notify_hosts=tell)
                told = began if tell else told
                self._put("picture", picture)
                pause = self._interval
            except (psycopg.Error, PgworkersError) as error:
                self._disconnect()
                self._put("lost", _first_line(error))
                pause = max(RECONNECT_PAUSE_SECONDS, self._interval)
            self._wake.wait(max(0.05, pause - (time.monotonic() - began)))
            self._wake.clear()


class ActionThread(_DatabaseThread):
    """Does one thing after the other; a host that does not answer delays only the next."""

    def __init__(self, db: OpenDatabase, put: Callable[[str, Any], None]) -> None:
        super().__init__(db, put, "actor")
        self._acts: queue.Queue[Action] = queue.Queue()

    def submit(self, act: Action) -> None:
        self._acts.put(act)

    def run(self) -> None:
        while True:
            act = self._acts.get()
            try:
                self._put("done", (act, perform_action(self._connected(), act)))
            except (psycopg.Error, PgworkersError) as error:
                self._disconnect()
                self._put(
                    "done", (replace(act, kind=f"{act.kind} failed"), f"{act.target}: {_first_line(error)}")
                )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class MessageQueue:
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
