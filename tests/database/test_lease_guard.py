"""The lease guard and its broken twin: the same check, run on the statements as they are and without their guard."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.desk import Desk

from pgworkers.job import finish, progress, release, retry
from pgworkers.job.claim import Claimed
from pgworkers.job.finish import End
from pgworkers.job.progress import Saved
from pgworkers.job.retry import Again
from pgworkers.job.state import State, Verdict
from pgworkers.postgres.statements import Query, Statement

WRITES: dict[str, Callable[[str, Claimed], Query[Any]]] = {
    "finish": lambda host, job: finish.finish(
        host,
        [End(id=job.id, lease=job.lease, state=State.SUCCEEDED, verdict=Verdict.SUCCEEDED, result='"stale"')],
    ),
    "retry": lambda host, job: retry.retry(
        host, [Again(id=job.id, lease=job.lease, verdict=Verdict.ERROR, after=9.0, error="stale")]
    ),
    "release": lambda host, job: release.release([(job.id, job.lease)]),
    "progress": lambda host, job: progress.save([Saved(job.id, job.lease, '"stale"', '"stale"')]),
}


def without(query: Query[Any], guard: str) -> Query[Any]:
    """The broken twin: the statement without one part of its guard."""
    text, times = re.subn(guard, "true", query.statement.text)
    assert times >= 2, "the lock and the write both name it"
    return Query(Statement(f"{query.statement.name} without its guard", text), query.params, query.read)


def untouched(
    desk: Desk, other: Desk, write: Callable[[str, Claimed], Query[Any]], broken: str | None
) -> bool:
    """Does a write by a lease that is over leave the row of its successor as it was?"""
    stale = desk.run_one()
    assert desk.again(stale, after=0.0, verdict=Verdict.INTERRUPTED, free=True) == "written"
    (fresh,) = other.take()
    query = write(desk.host, stale)
    before = desk.conn.execute("SELECT * FROM pgworkers.job").fetchall()
    desk.ask(query if broken is None else without(query, broken))
    return (
        desk.conn.execute("SELECT * FROM pgworkers.job").fetchall() == before
        and other.end(fresh) == "written"
    )


@pytest.mark.parametrize("name", WRITES)
def test_a_lease_that_is_over_writes_nothing(desk: Desk, other: Desk, name: str) -> None:
    assert untouched(desk, other, WRITES[name], None)


@pytest.mark.parametrize("name", WRITES)
def test_without_the_guard_the_check_goes_red(desk: Desk, other: Desk, name: str) -> None:
    assert not untouched(desk, other, WRITES[name], r"j\.lease = \w\.lease")


@pytest.mark.parametrize("name", WRITES)
def test_a_job_that_waits_is_not_written_by_its_last_lease(desk: Desk, name: str) -> None:
    """The lease number alone is not enough: after a release it is still the row's own."""

    def survives(broken: str | None) -> bool:
        job = desk.run_one()
        desk.ask(release.release([(job.id, job.lease)]))
        query = WRITES[name](desk.host, job)
        desk.ask(query if broken is None else without(query, broken))
        seen = desk.see(job.id)
        kept = seen.state is State.READY and seen.attempt == 0 and seen.progress is None
        desk.conn.execute("DELETE FROM pgworkers.job")
        return kept

    assert survives(None)
    if (
        name != "release"
    ):  # releasing what is released changes nothing but its attempt, which cannot fall below 0
        assert not survives(r"j\.state = 'running'")
