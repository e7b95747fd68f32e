"""Await the end of jobs: by notification, with a look every second in case one was missed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from psycopg import sql

from pgworkers.cli.place import Database
from pgworkers.clock import show_seconds
from pgworkers.errors import NotFound, ResultTimeout
from pgworkers.job import show
from pgworkers.job.notifications import HINT_PAUSE_SECONDS
from pgworkers.job.show import JobView
from pgworkers.job.state import TERMINAL
from pgworkers.postgres.statements import run

LOOK = 1.0
_BATCH = 1000


def until_ended(db: Database, ids: Sequence[int], timeout: float | None) -> list[JobView]:
    """The jobs once all have ended, in the order asked for. Unknown ids end the wait at once."""
    from pgworkers.cli.jobs import missing

    began = time.monotonic()
    db.conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{db.schema}_done")))
    ended: dict[int, JobView] = {}
    hinted = False
    while True:
        waiting = [one for one in dict.fromkeys(ids) if one not in ended]
        found = _look(db, waiting)
        if unknown := [one for one in waiting if one not in found]:
            raise NotFound(missing(unknown))
        ended |= {one: job for one, job in found.items() if job.state in TERMINAL}
        if len(waiting) == sum(one in ended for one in waiting):
            return [ended[one] for one in dict.fromkeys(ids)]
        left = None if timeout is None else timeout - (time.monotonic() - began)
        if left is not None and left <= 0:
            still = ", ".join(f"#{one} {found[one].state}" for one in waiting if one not in ended)
            raise ResultTimeout(f"not ended after {show_seconds(timeout or 0)}: {still}; the jobs go on")
        step = LOOK if left is None else min(LOOK, left)
        if hinted:  # in vain, and any login can send a notification
            time.sleep(min(step, HINT_PAUSE_SECONDS))
        # Whichever job a notification names, looking again is one cheap statement.
        hinted = bool(list(db.conn.notifies(timeout=step, stop_after=1)))


def _look(db: Database, ids: Sequence[int]) -> dict[int, JobView]:
    found: dict[int, JobView] = {}
    for at in range(0, len(ids), _BATCH):
        some = list(ids[at : at + _BATCH])
        for job in run(db.conn, db.schema, show.many(some)):
            found[job.id] = job
    return found
