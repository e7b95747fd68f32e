"""The threads of `top` that query the database. A server that does not answer must not freeze the screen."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg

from pgworkers.cli import host_requests
from pgworkers.cli.database import OpenDatabase
from pgworkers.cli.top.keys import Action, ActionKind
from pgworkers.cli.top.model import Snapshot
from pgworkers.errors import PgworkersError
from pgworkers.job import cancel, gauges, operations, queues
from pgworkers.job.queries import MAX_COUNTED_JOBS, overview
from pgworkers.job.requests import RequestKind
from pgworkers.postgres import connect

MAX_WORKERS_READ = 2000  #: workers that are read
#: Seconds between two notifications that the process view is watched. A host refreshes its view for 10 s after one.
WATCH_NOTIFY_SECONDS = 3.0
RECONNECT_PAUSE_SECONDS = 1.0


def read_snapshot(db: OpenDatabase, *, should_notify_hosts: bool) -> Snapshot:
    """Read the hosts, workers and queue depths: two statements, both with a limit on rows."""
    hosts, workers = db.run(overview(MAX_WORKERS_READ + 1, should_notify_hosts=should_notify_hosts))
    depths = db.run(gauges.count_depth(MAX_COUNTED_JOBS))
    return Snapshot(hosts, workers[:MAX_WORKERS_READ], depths, is_truncated=len(workers) > MAX_WORKERS_READ)


def perform_action(db: OpenDatabase, act: Action) -> str:
    """Perform an action. Returns a line about the outcome, or the stack."""
    if act.queue is not None:
        query, outcome = (
            (queues.pause_queue, "paused")
            if act.kind == ActionKind.PAUSE
            else (queues.resume_queue, "resumed")
        )
        done = db.run(query(act.queue))
        return f"queue {act.queue} {outcome}" if done else f"queue {act.queue} is not declared"
    assert act.job is not None
    if act.kind == ActionKind.CANCEL:
        answered = db.run(cancel.cancel(act.job, operations.make_note("from top")))
        return f"#{act.job} {answered or 'does not exist'}"
    answer = host_requests.request_for_job(db, RequestKind(act.kind), act.job)
    if answer.is_done is None:
        return f"#{act.job}: its host did not answer"
    return (
        answer.text or "" if act.kind == ActionKind.STACK and answer.is_done else f"#{act.job} {answer.text}"
    )


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    error: str


@dataclass(frozen=True, slots=True)
class ActionDone:
    action: Action
    text: str  # one line, or the stack
    is_failed: bool = False


Message = SnapshotRead | SnapshotFailed | ActionDone


class _DatabaseThread(threading.Thread):
    """A thread with its own connection, which is opened again after a loss. Its messages go to the loop of the screen."""

    def __init__(self, db: OpenDatabase, put: Callable[[Message], None], name: str) -> None:
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
    """Reads a snapshot every `interval` seconds, and at once on request."""

    def __init__(self, db: OpenDatabase, put: Callable[[Message], None], interval: float) -> None:
        super().__init__(db, put, "reader")
        self._interval = interval
        self._wake = threading.Event()

    def refresh_now(self) -> None:
        self._wake.set()

    def run(self) -> None:
        notified_at = 0.0
        while True:
            began = time.monotonic()
            try:
                is_due = began - notified_at >= WATCH_NOTIFY_SECONDS
                snapshot = read_snapshot(self._connected(), should_notify_hosts=is_due)
                notified_at = began if is_due else notified_at
                self._put(SnapshotRead(snapshot))
                pause = self._interval
            except (psycopg.Error, PgworkersError) as error:
                self._disconnect()
                self._put(SnapshotFailed(_first_line(error)))
                pause = max(RECONNECT_PAUSE_SECONDS, self._interval)
            self._wake.wait(max(0.05, pause - (time.monotonic() - began)))
            self._wake.clear()


class ActionThread(_DatabaseThread):
    """Performs one action after the other. A host that does not answer delays only the next action."""

    def __init__(self, db: OpenDatabase, put: Callable[[Message], None]) -> None:
        super().__init__(db, put, "actor")
        self._acts: queue.Queue[Action] = queue.Queue()

    def submit(self, act: Action) -> None:
        self._acts.put(act)

    def run(self) -> None:
        while True:
            act = self._acts.get()
            try:
                self._put(ActionDone(act, perform_action(self._connected(), act)))
            except (psycopg.Error, PgworkersError) as error:
                self._disconnect()
                self._put(ActionDone(act, f"{act.target}: {_first_line(error)}", is_failed=True))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class MessageQueue:
    """Messages of the threads, and a descriptor that wakes the loop."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._items: queue.Queue[Message] = queue.Queue()

    def put(self, message: Message) -> None:
        self._items.put(message)
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b".")

    def take(self) -> list[Message]:
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
        found = []
        while not self._items.empty():
            found.append(self._items.get())
        return found
