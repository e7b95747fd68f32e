"""What stands in for the database while a test captures jobs: it answers the queries of a client from a `JobStore`.

`BoxClient` is a `Client` whose two runners perform their steps here. So the code that builds queries, reads their answers
and explains their errors is the code that talks to Postgres. A query that a client does not send is refused by name.

A connection of the caller (`using(conn=...)`) is not used: the job is captured at once, whatever becomes of the transaction.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pgworkers.bounds import UNIX_EPOCH
from pgworkers.client.client import Client, FindCurrentConnection, Once, OnConnection, OnNewConnection
from pgworkers.errors import NotFound, UsageError
from pgworkers.job.changes import WatchEvent, next_event
from pgworkers.job.model import TERMINAL_STATES, NewJob
from pgworkers.job.queries import JobView, get_job
from pgworkers.postgres.statements import Query, Statement
from pgworkers.postgres.steps import (
    AsyncRunner,
    BlockingRunner,
    CopyIn,
    Execute,
    InspectTransaction,
    Sleep,
    Steps,
    Transaction,
    TransactionMode,
    WaitForNotifications,
)

if TYPE_CHECKING:
    from pgworkers.testing.box import Box

T = TypeVar("T")
Row = tuple[Any, ...]

#: Columns of the two COPY statements, in their order (job/copy_plain.sql, job/copy_all_columns.sql).
PLAIN_COLUMNS = ("priority", "queue", "task", "max_attempts", "max_crashes", "args")
ALL_COLUMNS = (
    "state", "priority", "queue", "task", "max_attempts", "max_crashes", "run_at", "expires_at", "deadline_at", "timeout",
    "memory", "concurrency_key", "meta", "batch_id", "has_links", "args",
)  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


@dataclass
class _Inserted:
    """What one connection has inserted, so that a failed transaction can be undone."""

    jobs: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)


class BoxClient(Client):
    """The client of an app while a box is open. It sends nothing."""

    def __init__(self, box: Box, real: Client) -> None:
        super().__init__(real.database)
        self.box = box
        self._box_runner = BoxRunner(box)
        self._async_box_runner = AsyncBoxRunner(box, self._box_runner)

    def run_steps(self, steps: Steps[T]) -> T:
        return self._box_runner.run(steps)

    async def arun_steps(self, steps: Steps[T]) -> T:
        return await self._async_box_runner.run(steps)

    def thread_waiters(self) -> Any:
        return BoxWaiters(self.box)

    def loop_waiters(self) -> Any:
        return AsyncBoxWaiters(self.box)

    def loop_watchers(self) -> Any:
        return BoxWatchers(self.box)

    def connect(self, role: str, *, is_pooled: bool = False) -> Any:
        raise UsageError(f"a box opens no connection ({role}); nothing was sent")

    async def aconnect(self, role: str, *, is_pooled: bool = False) -> Any:
        raise UsageError(f"a box opens no connection ({role}); nothing was sent")

    def close(self) -> None:
        """Nothing is open."""

    async def aclose(self) -> None:
        """Nothing is open."""


class BoxWaiters:
    """Waits for jobs in blocking code: a captured job ends only when the box runs it."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def wait(self, job_id: int, timeout: float | None) -> JobView | None:
        if self._box.should_run_for(job_id):
            self._box.run_all(raise_errors=False)
        return self._box.ended_view(job_id)


class AsyncBoxWaiters:
    """`BoxWaiters` for asyncio."""

    def __init__(self, box: Box) -> None:
        self._box = box

    async def wait(self, job_id: int, timeout: float | None) -> JobView | None:
        if self._box.should_run_for(job_id):
            await self._box.arun_all(raise_errors=False)
        return self._box.ended_view(job_id)


class BoxWatchers:
    """Watches jobs in a box: nothing is seen of a captured job before its end."""

    def __init__(self, box: Box) -> None:
        self._box = box

    async def watch(
        self, job_id: int, timeout: float | None = None
    ) -> AsyncGenerator[WatchEvent | None, None]:
        view = await AsyncBoxWaiters(self._box).wait(job_id, timeout)
        yield None if view is None else next_event(None, view)


class BoxRunner(BlockingRunner):
    """Performs the steps of a client without a database."""

    def __init__(self, box: Box, inserted: _Inserted | None = None) -> None:
        self._box = box
        self._store = box.store
        self._inserted = inserted or _Inserted()

    def perform(self, step: Any) -> Any:
        match step:
            case Once(query=query):
                return self._answer(query)
            case OnConnection(steps=steps) | OnNewConnection(steps=steps):
                return BoxRunner(self._box).run(steps)
            case Transaction(steps=steps):
                return self._run_transaction(steps)
            case CopyIn(statement=statement, blocks=blocks):
                return self._copy_in(statement, blocks)
            case InspectTransaction():
                return TransactionMode(is_autocommit=True, is_in_transaction=False)
            case FindCurrentConnection():
                return None  # a box has no transactions of a framework
            case Execute() | Sleep():
                return None  # LISTEN, settings of a transaction, pauses: no time passes in a box
            case WaitForNotifications():
                return self._wait()
            case Query():
                return self._answer(step)
        raise UsageError(f"a box does not know the step {type(step).__name__}; nothing was done")

    def _wait(self) -> list[str]:
        if not self._box.run_on_wait:
            raise UsageError(
                "nothing in a box ends this wait: call box.run() or box.run_all() first, or open the box with "
                "app.testing(run_on_wait=True)"
            )
        self._box.run_all(raise_errors=False)
        return self.hints_after_run()

    def hints_after_run(self) -> list[str]:
        """Notifications about all batches, so that a waiter looks. UsageError if no job has run for it."""
        if not self._box.has_progressed():
            raise UsageError(f"nothing in the box can end this wait; it holds:\n{self._box.describe()}")
        return [f"batch:{batch_id}" for batch_id in self._store.batches]

    def _run_transaction(self, steps: Steps[Any]) -> Any:
        jobs, batches = len(self._inserted.jobs), len(self._inserted.batches)
        try:
            return self.run(steps)
        except BaseException:
            self._store.remove(self._inserted.jobs[jobs:], self._inserted.batches[batches:])
            raise

    def _copy_in(self, statement: Statement, blocks: Iterable[str]) -> None:
        columns = PLAIN_COLUMNS if statement.name == "copy_plain" else ALL_COLUMNS
        for block in blocks:
            for line in block.removesuffix("\n").split("\n"):
                row = dict(zip(columns, map(_read_copied, line.split("\t")), strict=True))
                self._inserted.jobs.append(self._store.enqueue(_copied_job(row))[0])

    def _answer(self, query: Query[T]) -> T:
        answer = _ANSWERS.get(query.statement.name)
        if answer is None:
            raise UsageError(
                f"a box cannot answer the query {query.statement.name!r}; nothing was sent; use the fixture "
                "pgworkers_database or pgworkers_host for this test"
            )
        return query.read(answer(self, query.params_by_name(self._box.app.client.settings.schema)))

    # The answers, as rows.

    def _enqueue(self, params: Mapping[str, Any]) -> list[Row]:
        job_id, is_new = self._store.enqueue(_new_job(params))
        if is_new:
            self._inserted.jobs.append(job_id)
        return [(job_id, is_new)]

    def _enqueue_plain(self, params: Mapping[str, Any]) -> list[Row]:
        job = NewJob(
            task=params["task"],
            args_json=params["args"],
            queue=params["queue"],
            priority=int(params["priority"]),
            max_attempts=int(params["max_attempts"]),
            max_crashes=int(params["max_crashes"]),
        )
        job_id, _ = self._store.enqueue(job)
        self._inserted.jobs.append(job_id)
        return [(job_id,)]

    def _copy_defaults(self, params: Mapping[str, Any]) -> list[Row]:
        now_us = int((self._store.clock.now - UNIX_EPOCH).total_seconds() * 1e6)
        return [
            (now_us, task.name, task.queue, spec.priority, spec.max_attempts, spec.max_crashes)
            for task in self._box.app.tasks.values()
            for spec in [task.declared_spec]
        ] or [(now_us, None, None, None, None, None)]

    def _query_job(self, params: Mapping[str, Any]) -> list[Row]:
        row = self._store.view_row(params["id"])
        return [] if row is None else [row]

    def _query_jobs(self, params: Mapping[str, Any]) -> list[Row]:
        states = params["states"]
        rows = [self._store.view_row(one) for one in sorted(params["ids"], reverse=True)]
        return [row for row in rows if row is not None and (states is None or row[1] in states)]

    def _cancel_one(self, params: Mapping[str, Any]) -> list[Row]:
        return [(self._store.cancel(params["id"], params["reason"]),)]

    def _set_deadline(self, params: Mapping[str, Any]) -> list[Row]:
        return [(self._store.set_deadline(params["id"], params["seconds"]),)]

    def _batch_open(self, params: Mapping[str, Any]) -> list[Row]:
        batch_id = self._store.open_batch(params["on_failed"])
        self._inserted.batches.append(batch_id)
        return [(batch_id,)]

    def _batch_seal(self, params: Mapping[str, Any]) -> list[Row]:
        self._store.seal_batch(params["id"], params["total"], params["then_id"])
        return []

    def _batch_settle(self, params: Mapping[str, Any]) -> list[Row]:
        return [(self._store.settle_batch(params["id"]),)]

    def _batch_get(self, params: Mapping[str, Any]) -> list[Row]:
        found = self._store.batches.get(params["id"])
        if found is None:
            return []
        return [
            (
                found.id,
                found.total,
                found.then_id,
                found.on_failed,
                found.created_at,
                found.cancelled_at,
                found.finished_at,
            )
        ]

    def _batch_count(self, params: Mapping[str, Any]) -> list[Row]:
        found = self._store.batches.get(params["id"])
        if found is None:
            return []
        jobs = self._store.batch_jobs(found.id)
        failed = sum(job.state in TERMINAL_STATES and job.state != "succeeded" for job in jobs)
        return [(found.total, sum(job.is_live for job in jobs), failed, None)]

    def _batch_cancel(self, params: Mapping[str, Any]) -> list[Row]:
        return [(1,)] if self._store.cancel_batch(params["id"]) else []

    def _batch_cancel_jobs(self, params: Mapping[str, Any]) -> list[Row]:
        return [self._store.cancel_batch_jobs(params["id"], params["limit"])]

    def _rate_take(self, params: Mapping[str, Any]) -> list[Row]:
        return [(params["want"], inf)]  # granted at once: no time passes in a box

    def _nothing(self, params: Mapping[str, Any]) -> list[Row]:
        return []

    def _add_scope(self, params: Mapping[str, Any]) -> list[Row]:
        return [
            (self._box.scopes_of(params["name"]).add(params["scope"], msgspec.json.decode(params["args"])),)
        ]

    def _remove_scope(self, params: Mapping[str, Any]) -> list[Row]:
        return [(self._box.scopes_of(params["name"]).remove(params["scope"]),)]


#: How each statement of a client is answered.
_ANSWERS: dict[str, Callable[[BoxRunner, Mapping[str, Any]], list[Row]]] = {
    "enqueue": BoxRunner._enqueue,
    "enqueue_plain": BoxRunner._enqueue_plain,
    "copy_defaults": BoxRunner._copy_defaults,
    "copy_notify": BoxRunner._nothing,
    "query_job": BoxRunner._query_job,
    "query_jobs": BoxRunner._query_jobs,
    "cancel_one": BoxRunner._cancel_one,
    "set_deadline": BoxRunner._set_deadline,
    "batch_open": BoxRunner._batch_open,
    "batch_seal": BoxRunner._batch_seal,
    "batch_settle": BoxRunner._batch_settle,
    "batch_get": BoxRunner._batch_get,
    "batch_count": BoxRunner._batch_count,
    "batch_cancel": BoxRunner._batch_cancel,
    "batch_cancel_jobs": BoxRunner._batch_cancel_jobs,
    "rate_take": BoxRunner._rate_take,
    "rate_return": BoxRunner._nothing,
    "rate_drain": BoxRunner._nothing,
    "definition_add_scope": BoxRunner._add_scope,
    "definition_remove_scope": BoxRunner._remove_scope,
}


class AsyncBoxRunner(AsyncRunner):
    """Performs the steps of a client in an event loop. Only a wait differs from blocking code."""

    def __init__(self, box: Box, blocking: BoxRunner) -> None:
        self._box = box
        self._blocking = blocking

    async def perform(self, step: Any) -> Any:
        match step:
            case OnNewConnection("wait", steps):
                return await self.run(steps)
            case WaitForNotifications() if self._box.run_on_wait:
                await self._box.arun_all(raise_errors=False)
                return self._blocking.hints_after_run()
        return self._blocking.perform(step)


#: Parameters of enqueue.sql and the fields of NewJob.
_PARAMETER_FIELDS = {
    "task": "task",
    "args": "args_json",
    "queue": "queue",
    "priority": "priority",
    "run_at": "run_at",
    "delay": "delay",
    "unique": "unique_key",
    "on_conflict": "on_conflict",
    "max_attempts": "max_attempts",
    "max_crashes": "max_crashes",
    "timeout": "timeout",
    "memory": "memory",
    "deadline": "deadline",
    "expires": "expires",
    "concurrency_key": "concurrency_key",
    "meta": "meta_json",
    "after": "after",
    "on_failed": "on_failed",
    "held": "is_held",
    "idempotency_key": "idempotency_key",
    "idempotency_window": "idempotency_window",
}


def _new_job(params: Mapping[str, Any]) -> NewJob:
    values = {_PARAMETER_FIELDS[name]: value for name, value in params.items()}
    return NewJob(**values | {"after": tuple(values["after"])})


def _copied_job(row: Mapping[str, str | None]) -> NewJob:
    """A job of a COPY. Its times are absolute there; a new job has durations from its start."""

    def time(name: str) -> datetime | None:
        value = row.get(name)
        return None if value is None else datetime.fromisoformat(value)

    def seconds_after(start: datetime | None, at: datetime | None) -> float | None:
        return None if at is None or start is None else (at - start).total_seconds()

    def number(name: str) -> int | None:
        value = row.get(name)
        return None if value is None else int(value)

    due, timeout = time("run_at"), row.get("timeout")
    return NewJob(
        task=row["task"] or "",
        args_json=row["args"] or "{}",
        queue=row["queue"],
        priority=number("priority"),
        max_attempts=number("max_attempts"),
        max_crashes=number("max_crashes"),
        run_at=due,
        expires=seconds_after(due, time("expires_at")),
        deadline=seconds_after(due, time("deadline_at")),
        timeout=None if timeout is None else float(timeout.split()[0]),
        memory=number("memory"),
        concurrency_key=row.get("concurrency_key"),
        meta_json=row.get("meta"),
        batch_id=number("batch_id"),
    )


def _read_copied(text: str) -> str | None:
    """A value as COPY writes it."""
    if text == r"\N":
        return None
    if "\\" not in text:
        return text
    characters = iter(text)
    return "".join(_ESCAPES[next(characters)] if character == "\\" else character for character in characters)


class ScheduleScopes:
    """The scopes of one schedule in a box."""

    def __init__(self, declared: Mapping[str, Mapping[str, Any]]) -> None:
        self.args = {scope: dict(args) for scope, args in declared.items()}

    def add(self, scope: str, args: dict[str, Any]) -> bool:
        """Returns False if the schedule had this scope with these arguments."""
        if self.args.get(scope) == args:
            return False
        self.args[scope] = args
        return True

    def remove(self, scope: str) -> bool:
        return self.args.pop(scope, None) is not None


def find_scopes(known: Mapping[str, ScheduleScopes], name: str) -> ScheduleScopes:
    """NotFound if no scoped schedule has this name."""
    if name not in known:
        raise NotFound(f"there is no scoped schedule {name!r}; nothing was changed")
    return known[name]


def view_of(box: Box, job_id: int) -> JobView | None:
    """A captured job as `job.refresh()` shows it."""
    row = box.store.view_row(job_id)
    return get_job(job_id).read([] if row is None else [row])
