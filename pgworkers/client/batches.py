"""Creating a batch, and waiting for one: what takes more than one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace
from psycopg import Error
from psycopg.errors import InsufficientPrivilege

from pgworkers.client.client import Client, OnNewConnection
from pgworkers.client.connections import ConnectionLost
from pgworkers.client.waiting import listen
from pgworkers.clock import monotonic
from pgworkers.errors import DatabaseUnreachable, UsageError
from pgworkers.job import batches
from pgworkers.job.copy import copy_steps
from pgworkers.job.enqueue import enqueue
from pgworkers.job.model import NewJob, OnFailed
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS, BatchEnded, parse_done_hint
from pgworkers.postgres.steps import (
    Execute,
    Sleep,
    Steps,
    Transaction,
    WaitForNotifications,
    ask,
    begin_callers_transaction,
)


@dataclass(frozen=True, slots=True)
class CreatedBatch:
    """Numbers of a new batch and of the job after it, and how many jobs it has."""

    id: int
    total: int
    then_id: int | None


def create_batch_steps(
    jobs: Iterable[NewJob],
    then: NewJob | None,
    *,
    on_failed: OnFailed,
    report_count: Callable[[int], None] | None,
    is_own_connection: bool,
) -> Steps[CreatedBatch]:
    """Insert a batch with all its jobs or nothing, inside the caller's transaction if there is one."""

    def steps() -> Steps[CreatedBatch]:
        batch_id = yield from ask(batches.open_batch(on_failed))
        then_id = None
        if then is not None:
            then_id = (yield from ask(enqueue(_then_job(then, batch_id)))).id
        total = yield from copy_steps(
            _with_batch_id(jobs, batch_id), report_count, is_own_connection=is_own_connection
        )
        yield batches.seal_batch(batch_id, total, then_id)
        if not total:
            yield batches.settle_batch(batch_id)
        return CreatedBatch(id=batch_id, total=total, then_id=then_id)

    yield from begin_callers_transaction()
    created: CreatedBatch = yield Transaction(steps())
    return created


def _with_batch_id(jobs: Iterable[NewJob], batch_id: int) -> Iterator[NewJob]:
    return (replace(job, batch_id=batch_id) for job in jobs)


def _then_job(then: NewJob, batch_id: int) -> NewJob:
    """The job after the batch, held back until the batch is complete.

    It finds its number in `ctx.meta["batch"]`.
    """
    keyed = then.unique_key is not None or then.idempotency_key is not None
    if then.after or then.delay is not None or then.run_at is not None or keyed:
        raise UsageError(
            "then= begins when the batch is complete; give it no after, delay, at, unique or idempotency_key. "
            "Nothing was enqueued"
        )
    meta = {**msgspec.json.decode(then.meta_json or "{}"), "batch": batch_id}
    return replace(then, is_held=True, meta_json=msgspec.json.encode(meta).decode())


def wait_for_batch_steps(
    client: Client, batch_id: int, timeout: float | None
) -> Steps[batches.BatchView | None]:
    """Wait until a batch is finished, or until the time is up.

    Returns it as it then is; None: there is no such batch.
    """
    until = None if timeout is None else monotonic() + timeout
    while True:
        try:
            view: batches.BatchView | None = yield OnNewConnection(
                "wait", _watch_steps(client, batch_id, until)
            )
            return view
        except (Error, DatabaseUnreachable, ConnectionLost) as error:
            # The jobs continue, and so does the wait until its own time is up.
            pause = _next_wait_seconds(client, until)
            cause = error.error if isinstance(error, ConnectionLost) else error
            if pause <= 0 or isinstance(cause, InsufficientPrivilege):
                explained = client.explain_read_error(cause)
                if explained is error:
                    raise
                raise explained from cause
            yield Sleep(pause)


def _watch_steps(client: Client, batch_id: int, until: float | None) -> Steps[batches.BatchView | None]:
    """Look at the batch after every notification about it, and now and then without one."""
    yield Execute(listen(client.settings.schema))
    is_hinted = False
    while True:
        view = yield from ask(batches.get_batch(batch_id))
        seconds = _next_wait_seconds(client, until)
        if view is None or view.finished_at is not None or seconds <= 0:
            return view
        if is_hinted:  # and it is not finished: forged hints cause no more queries than this allows
            yield Sleep(min(seconds, MIN_HINT_INTERVAL_SECONDS))
        is_hinted = yield from _wait_for_hint_steps(batch_id, seconds)


def _wait_for_hint_steps(batch_id: int, seconds: float) -> Steps[bool]:
    """Wait for a notification about this batch. False: none arrived in time."""
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0:
        payloads: list[str] = yield WaitForNotifications(left)
        if any(parse_done_hint(payload) == BatchEnded(batch_id) for payload in payloads):
            return True
    return False


def _next_wait_seconds(client: Client, until: float | None) -> float:
    poll = client.settings.poll_interval
    return poll if until is None else min(poll, until - monotonic())
