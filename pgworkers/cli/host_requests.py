"""Requests to hosts: written to a table, answered by the host, and awaited here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from psycopg import sql

from pgworkers.cli.database import OpenDatabase
from pgworkers.errors import NotFound, PgworkersError
from pgworkers.job import queries, requests
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS
from pgworkers.job.requests import RequestAnswer, RequestKind

ANSWER_POLL_SECONDS = 0.5
ANSWER_TIMEOUT_SECONDS = 10.0


def request_for_job(db: OpenDatabase, kind: RequestKind, job_id: int) -> RequestAnswer:
    """Ask the host that runs this job, and wait for its answer."""
    number = db.run(requests.request_for_job(kind, job_id))
    if number is None:
        job = db.run(queries.get_job(job_id))
        if job is None:
            raise NotFound(f"there is no job #{job_id}; pgworkers jobs list shows those there are")
        raise PgworkersError(f"job #{job_id} is {job.state}, not running; nothing was done")
    return wait_for_answers(db, [number])[0]


def request_for_workers(
    db: OpenDatabase, kind: RequestKind, queue: str | None, slot: int | None
) -> list[RequestAnswer]:
    numbers = db.run(requests.request_for_workers(kind, queue, slot))
    return wait_for_answers(db, numbers)


def wait_for_answers(db: OpenDatabase, request_ids: Sequence[int]) -> list[RequestAnswer]:
    """Wait until all requests are answered, or a time limit for slow hosts is over."""
    give_up = time.monotonic() + ANSWER_TIMEOUT_SECONDS
    db.conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{db.schema}_done")))
    hinted = False
    while True:
        found = db.run(requests.read_answers(list(request_ids)))
        left = give_up - time.monotonic()
        if all(one.is_done is not None for one in found) or left <= 0:
            return found
        if hinted:  # by a notification, which any login can send
            time.sleep(min(left, MIN_HINT_INTERVAL_SECONDS))
        # a host that was not listening for a moment gets the next one
        db.conn.execute(sql.SQL("SELECT {}.notify('request:')").format(sql.Identifier(db.schema)))
        hinted = bool(list(db.conn.notifies(timeout=min(ANSWER_POLL_SECONDS, left), stop_after=1)))
