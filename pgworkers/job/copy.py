"""Enqueue many: any number of jobs by COPY, all or none, in constant memory.

What jobs have in common is written once: everything but the arguments is one piece of text, looked up by its values, so a
row costs Python about as much as the server. Rows travel in blocks. On a connection of our own one COPY stays open while
the caller's iterator goes on, so both sides work at once; on the caller's connection, which the iterator may use itself,
a block is gathered first and then sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import psycopg

from pgworkers.bounds import UNIX_EPOCH
from pgworkers.errors import UsageError
from pgworkers.job.model import NewJob
from pgworkers.postgres.statements import Query, Statement
from pgworkers.postgres.steps import (
    ConnectionRunner,
    CopyIn,
    Execute,
    Steps,
    Transaction,
    ask,
    begin_callers_transaction,
)

_COPY_DEFAULTS = Statement.from_file(__file__, "copy_defaults")
_COPY_PLAIN = Statement.from_file(__file__, "copy_plain")
_COPY_ALL_COLUMNS = Statement.from_file(__file__, "copy_all_columns")
_COPY_NOTIFY = Statement.from_file(__file__, "copy_notify")

#: A block ends after this many rows or characters. The first two apply on the connection of the caller, where each is a
#: COPY of its own that must stay far below a statement timeout. The last one applies where a COPY stays open.
COPY_BLOCK_ROWS = 5000
BLOCK_CHARACTERS = 4 << 20
STREAM_BLOCK_CHARACTERS = 64 << 10

#: As many different jobs are remembered; more means that each is different.
MAX_REMEMBERED_PREFIXES = 1000


CountCallback = Callable[[int], None] | None
CopyBlock = tuple[bool, str]  # are all columns in it, and the rows


def copy_jobs(
    conn: psycopg.Connection[Any],
    schema: str,
    jobs: Iterable[NewJob],
    report_count: CountCallback = None,
    *,
    is_own_connection: bool = False,
) -> int:
    """Run `copy_steps` on a blocking connection."""
    steps = copy_steps(jobs, report_count, is_own_connection=is_own_connection)
    return ConnectionRunner(conn, schema).run(steps)


def copy_steps(
    jobs: Iterable[NewJob], report_count: CountCallback = None, *, is_own_connection: bool
) -> Steps[int]:
    """Enqueue these jobs, all or none, inside the caller's transaction if there is one.

    Returns their number.

    `is_own_connection`: nothing else uses the connection, so the COPY may stay open while the iterator works.
    """
    mode = yield from begin_callers_transaction()
    steps = _copy_in_transaction_steps(
        jobs, report_count, is_autocommit=mode.is_autocommit, is_own_connection=is_own_connection
    )
    count: int = yield Transaction(steps)
    return count


def _copy_in_transaction_steps(
    jobs: Iterable[NewJob], report_count: CountCallback, *, is_autocommit: bool, is_own_connection: bool
) -> Steps[int]:
    if is_autocommit:
        yield Execute(_NO_TIMEOUTS if is_own_connection else _NO_IDLE_TIMEOUT)
    rows = CopyRows((yield from ask(Query(_COPY_DEFAULTS, {}, list))))
    if is_own_connection:
        blocks = rows.blocks(jobs, STREAM_BLOCK_CHARACTERS)
        for has_all_columns, group in groupby(blocks, key=itemgetter(0)):  # one COPY for each kind of block
            yield CopyIn(_statement(has_all_columns), _reported(group, rows, report_count))
    else:
        for has_all_columns, text in rows.blocks(jobs, BLOCK_CHARACTERS):
            yield CopyIn(_statement(has_all_columns), (text,))
            _report(report_count, rows)
    yield Query(_COPY_NOTIFY, {"queues": sorted(rows.ready_queues)}, list)
    return rows.count


def _reported(blocks: Iterable[CopyBlock], rows: CopyRows, report_count: CountCallback) -> Iterator[str]:
    """The texts of these blocks. The count is reported after each was sent."""
    for _, text in blocks:
        yield text
        _report(report_count, rows)


def _statement(has_all_columns: bool) -> Statement:
    return _COPY_ALL_COLUMNS if has_all_columns else _COPY_PLAIN


def _report(report_count: CountCallback, rows: CopyRows) -> None:
    if report_count is not None:
        report_count(rows.count)


#: The transaction is ours, and so is the time that the caller's iterator takes;
_NO_IDLE_TIMEOUT = "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)"
#: while a COPY stays open, that time is inside a statement as well.
_NO_TIMEOUTS = _NO_IDLE_TIMEOUT + ", pg_catalog.set_config('statement_timeout', '0', true)"


class TaskDefaults(NamedTuple):
    """What a task declares for jobs that do not set it.

    The values here are those of a task that is not declared.
    """

    queue: str = "default"
    priority: int = 0
    max_attempts: int = 20
    max_crashes: int = 3


_UNDECLARED_TASK = TaskDefaults()


class CopyRows:
    """Lines for COPY, from the database's clock and what the deployed apps declare about their tasks."""

    def __init__(self, found: list[tuple[Any, ...]]) -> None:
        self._tasks: dict[str, TaskDefaults] = {}
        for now_us, task, *defaults in found:  # one row per task; without tasks, one row of the clock only
            self.now = UNIX_EPOCH + timedelta(microseconds=now_us)
            if task is not None:
                self._tasks[task] = TaskDefaults(*defaults)
        self.ready_queues: set[str] = set()
        self.count = 0
        self._has_all_columns = False  # all columns, from the first job on that needs one of them
        self._prefixes: dict[tuple[Any, ...], str] = {}

    def blocks(self, jobs: Iterable[NewJob], limit: int) -> Iterator[CopyBlock]:
        """The rows of these jobs, in blocks of about this many characters."""
        lines: list[str] = []
        size = 0
        last, start = None, ""
        for job in jobs:
            key = (
                job.task, job.queue, job.priority, job.max_attempts, job.max_crashes, job.run_at, job.delay, job.expires,
                job.deadline, job.timeout, job.memory, job.concurrency_key, job.meta_json, job.batch_id, job.unique_key,
                job.after, job.is_held, job.idempotency_key,
            )  # fmt: skip
            if key != last:
                whole = self._has_all_columns
                start = self._prefixes.get(key) or self._prefix(job, key)
                last = key
                if whole is not self._has_all_columns and lines:
                    yield whole, "".join(lines)
                    lines, size = [], 0
            args = job.args_json
            if "\\" in args or "\n" in args or "\t" in args or "\r" in args:
                args = _escaped(args)
            line = f"{start}{args}\n"
            lines.append(line)
            self.count += 1
            size += len(line)
            if size >= limit or len(lines) >= COPY_BLOCK_ROWS:
                yield self._has_all_columns, "".join(lines)
                lines, size = [], 0
        if lines:
            yield self._has_all_columns, "".join(lines)

    def _prefix(self, job: NewJob, key: tuple[Any, ...]) -> str:
        """The line of this job up to its arguments."""
        if job.unique_key is not None or job.idempotency_key is not None or job.after or job.is_held:
            what = "after="
            if job.unique_key is not None or job.idempotency_key is not None:
                what = "an idempotency key" if job.unique_key is None else "a unique key"
            raise UsageError(
                f"{job.task}: a job with {what} cannot be enqueued in bulk; nothing was enqueued; enqueue it by itself"
            )
        if not self._has_all_columns and _needs_all_columns(job):
            self._has_all_columns = True
            self._prefixes.clear()
        elif len(self._prefixes) >= MAX_REMEMBERED_PREFIXES:
            self._prefixes.clear()
        declared = self._tasks.get(job.task, _UNDECLARED_TASK)
        queue = declared.queue if job.queue is None else job.queue
        due = self._add_seconds(job, job.run_at or self.now, job.delay or 0.0)
        later = due > self.now
        if not later:
            self.ready_queues.add(queue)
        values = [
            declared.priority if job.priority is None else job.priority,
            queue,
            job.task,
            declared.max_attempts if job.max_attempts is None else job.max_attempts,
            declared.max_crashes if job.max_crashes is None else job.max_crashes,
        ]
        if self._has_all_columns:
            values = [
                "scheduled" if later else "ready",
                *values,
                due,
                None if job.expires is None else self._add_seconds(job, due, job.expires),
                None if job.deadline is None else self._add_seconds(job, due, job.deadline),
                None if job.timeout is None else f"{job.timeout:f} seconds",
                job.memory,
                job.concurrency_key,
                job.meta_json,
                job.batch_id,
                job.batch_id is not None,
            ]
        start = "".join(f"{_text(value)}\t" for value in values)
        self._prefixes[key] = start
        return start

    @staticmethod
    def _add_seconds(job: NewJob, start: datetime, seconds: float) -> datetime:
        try:
            return start + timedelta(seconds=seconds)
        except OverflowError:
            raise UsageError(
                f"{job.task}: its time, or its deadline or expiry, lies beyond the year 9999; nothing was enqueued"
            ) from None


def _needs_all_columns(job: NewJob) -> bool:
    """True if the job sets a column that the plain COPY leaves to its default."""
    return (
        job.run_at is not None
        or job.delay is not None
        or job.expires is not None
        or job.deadline is not None
        or job.timeout is not None
        or job.memory is not None
        or job.concurrency_key is not None
        or job.meta_json is not None
        or job.batch_id is not None
    )


def _text(value: Any) -> str:
    if value is None:
        return r"\N"
    return _escaped(value.isoformat() if isinstance(value, datetime) else str(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
