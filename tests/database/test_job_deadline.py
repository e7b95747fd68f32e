"""Moving the deadline of a job: in SQL, from Python, and what a renewal says of it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from support.database_host import DatabaseHost

from pgworkers import App, NotFound
from pgworkers.cli.formatting import utcnow
from pgworkers.cli.jobs.story import tell_story
from pgworkers.job import cancel, hosts, operations
from pgworkers.job.model import JobState


def test_a_live_job_gets_it_and_a_running_one_is_notified(host: DatabaseHost) -> None:
    host.listen()
    waiting = host.enqueue()
    assert host.execute(cancel.set_deadline(waiting, 60.0)) == "ready"
    assert ("pgworkers", f"deadline:{waiting}") not in host.notifications()
    (job,) = host.claim()
    assert job.seconds_to_deadline == pytest.approx(60.0, abs=30.0)
    assert host.execute(cancel.set_deadline(job.id, 600.0)) == "running"
    assert ("pgworkers", f"deadline:{job.id}") in host.notifications()
    host.finish_job(job)
    assert host.execute(cancel.set_deadline(job.id, 600.0)) == "succeeded"
    assert host.execute(cancel.set_deadline(10**9, 600.0)) is None


@pytest.mark.parametrize("within", ["-1 s", "200 years", None])
def test_an_invalid_deadline_is_refused(host: DatabaseHost, within: str | None) -> None:
    job = host.enqueue()
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        host.conn.execute("SELECT pgworkers.set_deadline(%s, %s::interval)", [job, within])


def test_a_renewal_returns_deadlines_that_the_host_does_not_know(host: DatabaseHost) -> None:
    job, other = host.enqueue_and_claim(deadline=60.0), host.enqueue_and_claim()
    held = [job.fence, other.fence]

    def renewed(*known: float | None) -> list[hosts.ChangedDeadline]:
        return host.execute(
            hosts.renew_lease(host.id, held, "running", "[]", deadlines=known)
        ).changed_deadlines

    (first,) = renewed(None, None)
    assert first.fence == held[0]
    assert renewed(first.deadline_epoch, None) == []
    host.execute(cancel.set_deadline(other.id, 10.0))
    (moved,) = renewed(first.deadline_epoch, None)
    assert moved.fence == other.fence
    assert moved.seconds_to_deadline == pytest.approx(10.0, abs=9.0)


def test_a_claim_reads_the_deadline_as_a_renewal_does(host: DatabaseHost) -> None:
    """So a renewal returns only deadlines that were moved, however late a claim or a renewal is answered."""
    job = host.enqueue_and_claim(deadline=12345.678901)
    assert job.deadline_epoch is not None
    held = [job.fence]

    def renewed() -> list[hosts.ChangedDeadline]:
        return host.execute(
            hosts.renew_lease(host.id, held, "running", "[]", deadlines=[job.deadline_epoch])
        ).changed_deadlines

    assert renewed() == []
    host.conn.execute("UPDATE pgworkers.job SET deadline_at = NULL")
    (removed,) = renewed()
    assert (removed.deadline_epoch, removed.seconds_to_deadline) == (None, None)


def test_the_handle_moves_it(emptied: str, host: DatabaseHost) -> None:
    app = App(dsn=emptied)
    job = host.enqueue_and_claim()
    handle = app.job(job.id)
    assert handle.extend("10m") == "running"
    row = host.conn.execute("SELECT deadline_at > now() + interval '9 min' FROM pgworkers.job").fetchone()
    assert row == (True,)
    host.finish_job(job)

    async def later() -> str:
        said = await handle.aextend(5)
        await app.aclose()
        return said

    assert asyncio.run(later()) == JobState.SUCCEEDED
    with pytest.raises(NotFound):
        app.job(10**9).extend("1s")
    app.close()


def test_jobs_show_reports_a_moved_deadline(host: DatabaseHost) -> None:
    job = host.enqueue()
    host.execute(cancel.set_deadline(job, 600.0, operations.OperationNote(os_user="anna@laptop")))
    (done,) = host.execute(operations.operations_of_job(job))
    assert (done.verb, done.os_user, done.reason) == ("deadline", "anna@laptop", "within 00:10:00")
    told = list(tell_story(host.job_view(job), [], utcnow(), None, [done]))
    line = f"by {done.login} (anna@laptop): within 00:10:00"
    assert any(one.strip().startswith("deadline") and one.endswith(line) for one in told)
    (running,) = host.claim()
    host.finish_job(running)
    host.execute(cancel.set_deadline(job, 600.0))
    assert host.execute(operations.operations_of_job(job)) == [done], (
        "nothing was done to a job that has ended"
    )
