"""The lease guard and its broken twin: the same check, run on the statements as they are and without their guard."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.database_host import DatabaseHost

from pgworkers.job import finish, hosts
from pgworkers.job.finish import JobFinish, JobRetry, ProgressUpdate
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.postgres.statements import Query, Statement

WRITES: dict[str, Callable[[str, ClaimedJob], Query[Any]]] = {
    "finish": lambda host, job: finish.finish(
        host,
        [
            JobFinish(
                **job.fence._asdict(),
                state=JobState.SUCCEEDED,
                verdict=Verdict.SUCCEEDED,
                result='"stale"',
            )
        ],
    ),
    "retry": lambda host, job: finish.retry(
        host,
        [
            JobRetry(
                **job.fence._asdict(),
                verdict=Verdict.ERROR,
                delay_seconds=9.0,
                error="stale",
            )
        ],
    ),
    "release": lambda host, job: finish.release(host, [job.fence]),
    "progress": lambda host, job: finish.save_progress(
        host, [ProgressUpdate(*job.fence, '"stale"', '"stale"')]
    ),
}
#: A finish names the lease by its place: it finds and writes a row at once.
LEASE = (
    r"j\.lease = (?:\w\.lease|\(%\(leases\)s::integer\[\]\)\[width_bucket\(j\.id, %\(ids\)s::bigint\[\]\)\])"
)
CLAIM = (
    r"j\.claimed_at = (?:\w\.claim|\(%\(claims\)s::timestamptz\[\]\)"
    r"\[width_bucket\(j\.id, %\(ids\)s::bigint\[\]\)\])"
)
HOST = r"j\.host IS NOT DISTINCT FROM (?:%\(host\)s::uuid|a\.host)"


def without(query: Query[Any], guard: str) -> Query[Any]:
    """The broken twin: the statement without one part of its guard."""
    text, times = re.subn(guard, "true", query.statement.text)
    assert times >= (1 if query.statement.name == "finish" else 2), "the lock and the write both name it"
    return Query(Statement(f"{query.statement.name} without its guard", text), query.params, query.read)


def unchanged(host: DatabaseHost, query: Query[Any], broken: str | None) -> bool:
    """True if this write leaves the row as it was."""
    before = host.conn.execute("SELECT * FROM pgworkers.job").fetchall()
    host.execute(query if broken is None else without(query, broken))
    return host.conn.execute("SELECT * FROM pgworkers.job").fetchall() == before


def untouched(host: DatabaseHost, write: Callable[[str, ClaimedJob], Query[Any]], broken: str | None) -> bool:
    """Does a write by a lease that is over leave the row of its successor as it was? Both are of one host."""
    stale = host.enqueue_and_claim()
    assert host.retry_job(stale, delay_seconds=0.0, verdict=Verdict.INTERRUPTED, is_free=True) == "written"
    (fresh,) = host.claim()
    assert fresh.lease > stale.lease
    stale = stale._replace(claimed_at_us=fresh.claimed_at_us)  # else the moment alone would tell them apart
    return unchanged(host, write(host.id, stale), broken) and host.finish_job(fresh) == "written"


def given_again(host: DatabaseHost, to: DatabaseHost) -> tuple[ClaimedJob, ClaimedJob]:
    """A claim that an asynchronous failover lost, and the next one of that job, which has the same number."""
    stale = host.enqueue_and_claim()
    host.conn.execute(  # what the new primary knows: the claim never was
        "UPDATE pgworkers.job SET state = 'ready', host = NULL, claimed_at = NULL, lease = lease - 1, attempt = attempt - 1"
    )
    (fresh,) = to.claim()
    assert (fresh.id, fresh.lease) == (stale.id, stale.lease)
    return stale, fresh


def untouched_by_another(
    host: DatabaseHost,
    other: DatabaseHost,
    write: Callable[[str, ClaimedJob], Query[Any]],
    broken: str | None,
) -> bool:
    """After an asynchronous failover a lease number that was lost is given again: here, to another host."""
    stale, fresh = given_again(host, other)
    stale = stale._replace(claimed_at_us=fresh.claimed_at_us)  # else the moment alone would tell them apart
    return unchanged(host, write(host.id, stale), broken) and other.finish_job(fresh) == "written"


def untouched_by_the_same_host(
    host: DatabaseHost, write: Callable[[str, ClaimedJob], Query[Any]], broken: str | None
) -> bool:
    """And here to the same host, perhaps for another job: only the moment of the claim tells them apart."""
    stale, fresh = given_again(host, host)
    return unchanged(host, write(host.id, stale), broken) and host.finish_job(fresh) == "written"


@pytest.mark.parametrize("name", WRITES)
def test_a_lease_that_is_over_writes_nothing(host: DatabaseHost, name: str) -> None:
    assert untouched(host, WRITES[name], None)


@pytest.mark.parametrize("name", WRITES)
def test_without_the_guard_the_check_goes_red(host: DatabaseHost, name: str) -> None:
    assert not untouched(host, WRITES[name], LEASE)


@pytest.mark.parametrize("name", WRITES)
def test_a_lease_of_another_host_writes_nothing_even_with_the_same_number(
    host: DatabaseHost, other: DatabaseHost, name: str
) -> None:
    assert untouched_by_another(host, other, WRITES[name], None)


@pytest.mark.parametrize("name", WRITES)
def test_without_the_host_in_the_guard_the_check_goes_red(
    host: DatabaseHost, other: DatabaseHost, name: str
) -> None:
    assert not untouched_by_another(host, other, WRITES[name], HOST)


@pytest.mark.parametrize("name", WRITES)
def test_a_claim_of_a_lost_timeline_writes_nothing_even_by_the_same_host(
    host: DatabaseHost, name: str
) -> None:
    assert untouched_by_the_same_host(host, WRITES[name], None)


@pytest.mark.parametrize("name", WRITES)
def test_without_the_moment_of_the_claim_in_the_guard_the_check_goes_red(
    host: DatabaseHost, name: str
) -> None:
    assert not untouched_by_the_same_host(host, WRITES[name], CLAIM)


def test_an_end_of_a_lost_timeline_is_lost_though_its_number_ended_alike(host: DatabaseHost) -> None:
    stale, fresh = given_again(host, host)
    assert host.finish_job(fresh, result="1") == "written"
    assert (host.finish_job(stale, result="1"), host.finish_job(fresh, result="1")) == ("lost", "already")
    stale, fresh = given_again(host, host)
    assert host.retry_job(fresh) == "written"
    assert (host.retry_job(stale), host.retry_job(fresh)) == ("lost", "already")


def test_a_host_that_renews_learns_that_its_claim_is_of_a_lost_timeline(host: DatabaseHost) -> None:
    stale, fresh = given_again(host, host)
    host.conn.execute("UPDATE pgworkers.job SET cancel_at = now()")
    renewed = host.execute(hosts.renew_lease(host.id, [stale.fence, fresh.fence], "running", "[]"))
    assert (renewed.lost_leases, renewed.cancel_requests) == ([stale.fence], [fresh.fence])
    assert host.execute(hosts.jobs_of_host(host.id, 0.0)).fences == [fresh.fence]


def test_the_moment_of_a_claim_comes_back_exactly(host: DatabaseHost) -> None:
    """To the microsecond, for any date in use."""
    for moment in (
        "2026-11-18 07:03:15.000001+00",
        "1999-12-31 23:59:59.999999+00",
        "1970-01-01 00:00:00.000001+00",
        "2199-12-31 23:59:59.999999+00",
    ):
        job = host.enqueue_and_claim()
        host.conn.execute("UPDATE pgworkers.job SET claimed_at = %s WHERE id = %s", [moment, job.id])
        (held,) = host.execute(hosts.jobs_of_host(host.id, -1e10)).fences
        (row,) = host.conn.execute(
            "SELECT (extract(epoch FROM claimed_at) * 1000000)::bigint FROM pgworkers.job"
        ).fetchall()
        assert held.claimed_at_us == row[0], moment
        assert host.execute(finish.release(host.id, [held])).released_count == 1, moment
        host.conn.execute("DELETE FROM pgworkers.job")


def test_a_host_that_renews_learns_that_its_number_is_anothers(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job = other.enqueue_and_claim()
    held = [job.fence]
    assert host.execute(hosts.renew_lease(host.id, held, "running", "[]")).lost_leases == held
    assert other.execute(hosts.renew_lease(other.id, held, "running", "[]")).lost_leases == []


@pytest.mark.parametrize("name", WRITES)
def test_a_job_that_waits_is_not_written_by_its_last_lease(host: DatabaseHost, name: str) -> None:
    """The lease number alone is not enough: after a release it is still the row's own. A row that waits has no host
    (a CHECK) and no moment of a claim either, so the twin must lose all of them."""

    def survives(broken: str | None) -> bool:
        job = host.enqueue_and_claim()
        host.execute(finish.release(host.id, [job.fence]))
        query = WRITES[name](host.id, job)
        host.execute(query if broken is None else without(query, broken))
        seen = host.job_view(job.id)
        kept = seen.state is JobState.READY and seen.attempt == 0 and seen.progress is None
        host.conn.execute("DELETE FROM pgworkers.job")
        return kept

    assert survives(None)
    if (
        name != "release"
    ):  # releasing what is released changes nothing but its attempt, which cannot fall below 0
        assert not survives(rf"{CLAIM}\s+AND {HOST} AND j\.state = 'running'")
