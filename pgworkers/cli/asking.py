"""Requests to hosts from the command line: asked in the table, answered by the host, awaited here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from psycopg import sql

from pgworkers.cli.place import Database
from pgworkers.errors import NotFound, PgworkersError
from pgworkers.job import request, show
from pgworkers.job.notifications import HINT_PAUSE_SECONDS
from pgworkers.job.request import Answer
from pgworkers.postgres.statements import run

LOOK = 0.5
PATIENCE = 10.0


def of_job(db: Database, kind: str, job_id: int) -> Answer:
    """Ask the host that runs this job, and wait for its answer."""
    number = run(db.conn, db.schema, request.ask_job(kind, job_id))
    if number is None:
        job = run(db.conn, db.schema, show.get(job_id))
        if job is None:
            raise NotFound(f"there is no job #{job_id}; pgworkers jobs list shows those there are")
        raise PgworkersError(f"job #{job_id} is {job.state}, not running; nothing was done")
    return answers(db, [number])[0]


def of_workers(db: Database, kind: str, queue: str | None, slot: int | None) -> list[Answer]:
    numbers = run(db.conn, db.schema, request.ask_workers(kind, queue, slot))
    return answers(db, numbers)


def answers(db: Database, requests: Sequence[int]) -> list[Answer]:
    """Wait until all are answered, or for as long as hosts may be expected to take."""
    give_up = time.monotonic() + PATIENCE
    db.conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{db.schema}_done")))
    hinted = False
    while True:
        found = run(db.conn, db.schema, request.read(list(requests)))
        left = give_up - time.monotonic()
        if all(one.done is not None for one in found) or left <= 0:
            return found
        if hinted:  # by a notification, which any login can send
            time.sleep(min(left, HINT_PAUSE_SECONDS))
        # a host that was deaf for a moment hears the next one
        db.conn.execute(sql.SQL("SELECT {}.tell('request:')").format(sql.Identifier(db.schema)))
        hinted = bool(list(db.conn.notifies(timeout=min(LOOK, left), stop_after=1)))
