"""Creating a batch, and waiting for one: what takes more than one statement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from psycopg import Error
from psycopg.errors import InsufficientPrivilege

from pgworkers.client.waiting import listen
from pgworkers.clock import monotonic
from pgworkers.errors import DatabaseUnreachable, UsageError
from pgworkers.job import batches
from pgworkers.job.copy import acopy_jobs, copy_jobs
from pgworkers.job.enqueue import enqueue
from pgworkers.job.model import NewJob, OnFailed
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS, BatchEnded, parse_done_hint
from pgworkers.postgres.statements import arun, run

if TYPE_CHECKING:
    import psycopg

    from pgworkers.client.client import Client

ProgressCallback = Callable[[int], None] | None


@dataclass(frozen=True, slots=True)
class CreatedBatch:
    id: int
    total: int
    then_id: int | None


def create_batch_steps(
    conn: psycopg.Connection[Any],
    schema: str,
    jobs: Iterable[NewJob],
    then: NewJob | None,
    on_failed: OnFailed,
    progress: ProgressCallback,
    *,
    ours: bool,
) -> CreatedBatch:
    """All of it or nothing; inside the caller's transaction when there is one."""
    with conn.transaction():
        batch_id = run(conn, schema, batches.open_batch(on_failed))
        last = None if then is None else run(conn, schema, enqueue(_then_job(then, batch_id))).id
        total = copy_jobs(conn, schema, _with_batch_id(jobs, batch_id), progress, is_own_connection=ours)
        run(conn, schema, batches.seal_batch(batch_id, total, last))
        if not total:
            run(conn, schema, batches.settle_batch(batch_id))
    return CreatedBatch(batch_id, total, last)


async def acreate(
    conn: psycopg.AsyncConnection[Any],
    schema: str,
    jobs: Iterable[NewJob],
    then: NewJob | None,
    on_failed: OnFailed,
    progress: ProgressCallback,
    *,
    ours: bool,
) -> CreatedBatch:
    async with conn.transaction():
        batch_id = await arun(conn, schema, batches.open_batch(on_failed))
        last = None if then is None else (await arun(conn, schema, enqueue(_then_job(then, batch_id)))).id
        total = await acopy_jobs(
            conn, schema, _with_batch_id(jobs, batch_id), progress, is_own_connection=ours
        )
        await arun(conn, schema, batches.seal_batch(batch_id, total, last))
        if not total:
            await arun(conn, schema, batches.settle_batch(batch_id))
    return CreatedBatch(batch_id, total, last)


def _with_batch_id(jobs: Iterable[NewJob], batch_id: int) -> Iterator[NewJob]:
    return (replace(job, batch_id=batch_id) for job in jobs)


def _then_job(then: NewJob, batch_id: int) -> NewJob:
    """What comes after the batch knows which one: `ctx.meta["batch"]`."""
    keyed = then.unique_key is not None or then.idempotency_key is not None
    if then.after or then.delay is not None or then.run_at is not None or keyed:
        raise UsageError(
            "then= begins when the batch is complete; give it no after, delay, at, unique or idempotency_key. "
            "Nothing was enqueued"
        )
    meta = {**msgspec.json.decode(then.meta_json or "{}"), "batch": batch_id}
    return replace(then, is_held=True, meta_json=msgspec.json.encode(meta).decode())


def wait_for_batch_steps(client: Client, batch_id: int, timeout: float | None) -> batches.BatchView | None:
    """The batch when it is finished, or as it is when the time is up; None: there is no such batch."""
    until = None if timeout is None else monotonic() + timeout
    schema = client.settings.schema
    while True:
        try:
            with client.connect("wait") as conn:
                conn.execute(listen(schema))
                hinted = False
                while True:
                    view = run(conn, schema, batches.get_batch(batch_id))
                    step = _next_wait_seconds(client, until)
                    if view is None or view.finished_at is not None or step <= 0:
                        return view
                    if hinted:  # and it is not finished: forged hints cost no more looks than this allows
                        time.sleep(min(step, MIN_HINT_INTERVAL_SECONDS))
                    hinted = any(
                        parse_done_hint(notice.payload) == BatchEnded(batch_id)
                        for notice in conn.notifies(timeout=step)
                    )
        except (
            Error,
            DatabaseUnreachable,
        ) as exc:  # the jobs go on; so does the wait, until its own time is up
            step = _next_wait_seconds(client, until)
            if step <= 0 or isinstance(exc, InsufficientPrivilege):
                raise client.explain_read_error(exc) from exc
            time.sleep(step)


async def await_end(client: Client, batch_id: int, timeout: float | None) -> batches.BatchView | None:
    """`wait` in an event loop."""
    until = None if timeout is None else monotonic() + timeout
    schema = client.settings.schema
    while True:
        try:
            async with await client.aconnect("wait") as conn:
                await conn.execute(listen(schema))
                hinted = False
                while True:
                    view = await arun(conn, schema, batches.get_batch(batch_id))
                    step = _next_wait_seconds(client, until)
                    if view is None or view.finished_at is not None or step <= 0:
                        return view
                    if hinted:
                        await asyncio.sleep(min(step, MIN_HINT_INTERVAL_SECONDS))
                    hinted = False
                    async for notice in conn.notifies(timeout=step):
                        if parse_done_hint(notice.payload) == BatchEnded(batch_id):
                            hinted = True
                            break
        except (Error, DatabaseUnreachable) as exc:
            step = _next_wait_seconds(client, until)
            if step <= 0 or isinstance(exc, InsufficientPrivilege):
                raise client.explain_read_error(exc) from exc
            await asyncio.sleep(step)


def _next_wait_seconds(client: Client, until: float | None) -> float:
    poll = client.settings.poll_interval
    return poll if until is None else min(poll, until - monotonic())
