"""Every way a job can end badly, and whether a job waits for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.database_host import Desk

from pgworkers.job import cancel, finish, maintenance
from pgworkers.job.model import JobState


def waits(desk: Desk, job: int) -> bool:
    row = desk.conn.execute(
        "SELECT state = 'scheduled' AND run_at = pgworkers.far_future() FROM pgworkers.job WHERE id = %s",
        [job],
    ).fetchone()
    return bool(row and row[0])


def _finished(desk: Desk, job: int) -> None:
    (claimed,) = desk.take()
    assert claimed.id == job
    desk.end(claimed, JobState.DEAD)


def _wished_then_retried(desk: Desk, job: int) -> None:
    (claimed,) = desk.take()
    desk.execute(cancel.cancel(job))
    desk.again(claimed)


def _wished_then_released(desk: Desk, job: int) -> None:
    (claimed,) = desk.take()
    desk.execute(cancel.cancel(job))
    desk.execute(finish.release(desk.host, [claimed.fence]))


def _rescued_dead(desk: Desk, job: int) -> None:
    desk.take()
    desk.conn.execute(
        "UPDATE pgworkers.job SET attempt = max_attempts, host = gen_random_uuid() WHERE id = %s", [job]
    )
    desk.execute(maintenance.rescue_jobs(desk.host, 10))


def _expired(desk: Desk, job: int) -> None:
    desk.conn.execute("UPDATE pgworkers.job SET expires_at = now() WHERE id = %s", [job])
    desk.execute(maintenance.expire_jobs(10))


#: As functions of a database host and the id of a ready job.
BAD_ENDS: dict[str, Callable[[Desk, int], Any]] = {
    "finish": _finished,
    "retry of a cancelled one": _wished_then_retried,
    "release of a cancelled one": _wished_then_released,
    "rescue": _rescued_dead,
    "expire": _expired,
    "cancel": lambda desk, job: desk.execute(cancel.cancel(job)),
    "cancel many": lambda desk, job: desk.execute(cancel.cancel_many([job])),
    "discard": lambda desk, job: desk.execute(cancel.discard(job)),
    "discard many": lambda desk, job: desk.execute(cancel.discard_many([job])),
}
