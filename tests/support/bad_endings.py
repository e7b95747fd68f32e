"""Every way a job can end badly, and whether a job waits for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.database_host import DatabaseHost

from pgworkers.job import cancel, finish, maintenance
from pgworkers.job.model import JobState


def waits(host: DatabaseHost, job: int) -> bool:
    row = host.conn.execute(
        "SELECT state = 'scheduled' AND run_at = pgworkers.far_future() FROM pgworkers.job WHERE id = %s",
        [job],
    ).fetchone()
    return bool(row and row[0])


def _finished(host: DatabaseHost, job: int) -> None:
    (claimed,) = host.claim()
    assert claimed.id == job
    host.finish_job(claimed, JobState.DEAD)


def _cancelled_then_retried(host: DatabaseHost, job: int) -> None:
    (claimed,) = host.claim()
    host.execute(cancel.cancel(job))
    host.retry_job(claimed)


def _cancelled_then_released(host: DatabaseHost, job: int) -> None:
    (claimed,) = host.claim()
    host.execute(cancel.cancel(job))
    host.execute(finish.release(host.id, [claimed.fence]))


def _rescued_dead(host: DatabaseHost, job: int) -> None:
    host.claim()
    host.conn.execute(
        "UPDATE pgworkers.job SET attempt = max_attempts, host = gen_random_uuid() WHERE id = %s", [job]
    )
    host.execute(maintenance.rescue_jobs(host.id, 10))


def _expired(host: DatabaseHost, job: int) -> None:
    host.conn.execute("UPDATE pgworkers.job SET expires_at = now() WHERE id = %s", [job])
    host.execute(maintenance.expire_jobs(10))


#: As functions of a database host and the id of a ready job.
BAD_ENDS: dict[str, Callable[[DatabaseHost, int], Any]] = {
    "finish": _finished,
    "retry of a cancelled one": _cancelled_then_retried,
    "release of a cancelled one": _cancelled_then_released,
    "rescue": _rescued_dead,
    "expire": _expired,
    "cancel": lambda host, job: host.execute(cancel.cancel(job)),
    "cancel many": lambda host, job: host.execute(cancel.cancel_many([job])),
    "discard": lambda host, job: host.execute(cancel.discard(job)),
    "discard many": lambda host, job: host.execute(cancel.discard_many([job])),
}
