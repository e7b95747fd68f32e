"""Faults at chosen points of a job, for `pytest --pgworkers-chaos` (`pgworkers/testing/chaos`).

PGWORKERS_CHAOS_PLAN names a file that says which fault happens at which point. Without it nothing here is imported. A point
is a use of the context (`ctx.progress`), or the moment before or after a statement of `ctx.connect()`. Only the thread of
the handler passes points. A fault happens once: the first worker that reaches it creates the file `fired`.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import msgspec

from pgworkers.context import ConnectionFactory, Ctx

PLAN_VARIABLE = "PGWORKERS_CHAOS_PLAN"

#: What of a context is a point. Its plain data (job, meta, attempt) is not.
CONTEXT_POINTS = frozenset(
    {
        *("progress", "track", "check_cancelled", "cancelled", "deadline", "extend", "checkpoint"),
        *("enqueue", "connect", "aconnect", "rate", "metrics", "log"),
    }
)
#: The point after the handler has returned and before its end is reported.
END_POINT = "the end of the handler"


class ChaosPlan(msgspec.Struct):
    """What happens in a run: at the point `index` (from 1) of a job of `task`, or `delay` seconds after its begin."""

    directory: str  # where the run notes what it did
    fault: str = "record"  # "record" notes the points; "kill", "steal" and "cut" are faults
    task: str = ""
    index: int = 0
    delay: float = 0.0
    schema: str = "pgworkers"


class RecordedPoint(msgspec.Struct, frozen=True):
    """One line of the file `points` of a recording run. An `index` of 0 is the end: `seconds` after the begin."""

    task: str
    index: int
    name: str
    is_sql: bool
    seconds: float


def read_plan() -> ChaosPlan:
    with open(os.environ[PLAN_VARIABLE], "rb") as file:
        return msgspec.json.decode(file.read(), type=ChaosPlan)


class ChaosPoints:
    """Counts the points that one attempt passes, and lets the planned fault happen."""

    def __init__(
        self, plan: ChaosPlan, *, job: int, lease: int, task: str, opener: ConnectionFactory
    ) -> None:
        self._plan = plan
        self._job = job
        self._lease = lease
        self._task = task
        self._opener = opener
        self._thread = threading.get_ident()
        self._passed = 0
        self._began_at = time.monotonic()
        self._is_acting = False
        if plan.delay and plan.task == task:
            timer = threading.Timer(plan.delay, self._fire, [None, f"{plan.delay:.3f} s after the begin"])
            timer.daemon = True
            timer.start()

    def reach(self, name: str, conn: Any = None) -> None:
        """Pass a point. `conn`: the connection of the handler whose statement it is."""
        if threading.get_ident() != self._thread or self._is_acting:
            return
        self._passed += 1
        if self._plan.fault == "record":
            self._record(self._passed, name, is_sql=conn is not None)
        elif self._plan.task == self._task and self._plan.index == self._passed:
            self._fire(conn, name)

    def end(self) -> None:
        """The handler has ended."""
        self.reach(END_POINT)
        if self._plan.fault == "record":
            self._record(0, END_POINT, is_sql=False)

    def _record(self, index: int, name: str, *, is_sql: bool) -> None:
        point = RecordedPoint(self._task, index, name, is_sql, time.monotonic() - self._began_at)
        with open(os.path.join(self._plan.directory, "points"), "ab") as file:
            file.write(msgspec.json.encode(point) + b"\n")

    def _fire(self, conn: Any, name: str) -> None:
        try:
            with open(os.path.join(self._plan.directory, "fired"), "x", encoding="utf-8") as file:
                file.write(name)
        except OSError:  # it has happened, or the run is over
            return
        match self._plan.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "steal":
                self._steal_lease()
            case "cut":
                _cut(conn)

    def _steal_lease(self) -> None:
        """Return the job to its queue while it runs, as the leader does when a host is lost."""
        from psycopg import sql

        self._is_acting = True  # the statements here are no points
        try:
            with self._opener.connect(autocommit=True) as conn:
                conn.execute(
                    sql.SQL(
                        "UPDATE {} SET state = 'ready', host = NULL, claimed_at = NULL, run_at = now() "
                        "WHERE id = %s AND lease = %s AND state = 'running'"
                    ).format(sql.Identifier(self._plan.schema, "job")),
                    [self._job, self._lease],
                )
        finally:
            self._is_acting = False


class ChaosConnections:
    """Opens the connections of a handler, and makes each of their statements a point."""

    def __init__(self, opener: ConnectionFactory, points: ChaosPoints) -> None:
        self._opener = opener
        self._points = points

    def connect(self, **options: Any) -> Any:
        conn = self._opener.connect(**options)
        wait = conn.wait

        def wait_with_points(gen: Any, *args: Any, **kwargs: Any) -> Any:
            self._points.reach("before a statement", conn)
            answer = wait(gen, *args, **kwargs)
            self._points.reach("after a statement", conn)
            return answer

        conn.wait = wait_with_points  # type: ignore[method-assign]
        return conn

    async def aconnect(self, **options: Any) -> Any:
        conn = await self._opener.aconnect(**options)
        wait = conn.wait

        async def wait_with_points(gen: Any, *args: Any, **kwargs: Any) -> Any:
            self._points.reach("before a statement", conn)
            answer = await wait(gen, *args, **kwargs)
            self._points.reach("after a statement", conn)
            return answer

        conn.wait = wait_with_points  # type: ignore[method-assign]
        return conn


class ChaosCtx(Ctx):
    """A context whose uses are points."""

    __slots__ = ("_points",)

    def __init__(
        self, *, job: int, task: str, connections: ConnectionFactory, lease: int, **more: Any
    ) -> None:
        points = ChaosPoints(read_plan(), job=job, lease=lease, task=task, opener=connections)
        super().__init__(
            job=job, task=task, lease=lease, connections=ChaosConnections(connections, points), **more
        )
        self._points = points

    def __getattribute__(self, name: str) -> Any:
        if name in CONTEXT_POINTS:
            object.__getattribute__(self, "_points").reach(f"ctx.{name}")
        return super().__getattribute__(name)

    def take_checkpoint(self) -> bytes | None:
        found: bytes | None = object.__getattribute__(self, "checkpoint").take_changes()
        return found

    def end_handler(self) -> None:
        """The handler has returned or raised."""
        self._points.end()


def _cut(conn: Any) -> None:
    """Break a connection, as a network does."""
    with suppress(OSError), socket.socket(fileno=os.dup(conn.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
