"""Mine: what a host holds according to the tables."""

from __future__ import annotations

from support.database_host import DatabaseHost

from pgworkers.job.hosts import jobs_of_host


def test_a_host_sees_what_it_claimed_and_nothing_of_others(host: DatabaseHost, other: DatabaseHost) -> None:
    ours, theirs, ended = host.enqueue_and_claim(), other.enqueue_and_claim(), host.enqueue_and_claim()
    host.finish_job(ended)
    host.enqueue()
    assert host.execute(jobs_of_host(host.id, 0.0)).fences == [ours.fence]
    assert other.execute(jobs_of_host(other.id, 0.0)).fences == [theirs.fence]


def test_what_was_claimed_just_now_may_still_be_on_its_way(host: DatabaseHost) -> None:
    host.enqueue_and_claim()
    assert host.execute(jobs_of_host(host.id, 3600.0)).fences == []


def test_a_clock_that_was_set_forward_makes_no_claim_old(host: DatabaseHost) -> None:
    """By the row it is as old as after a jump; its answer may still be on its way."""
    job = host.enqueue_and_claim()
    host.conn.execute("UPDATE pgworkers.job SET claimed_at = claimed_at - interval '10 min'")
    (clock,) = host.conn.execute("SELECT now() - interval '10 min'").fetchone() or (None,)
    assert host.execute(jobs_of_host(host.id, 60.0, host_clock=clock)).fences == []
    assert host.execute(jobs_of_host(host.id, 60.0)).fences == [
        job.fence._replace(claimed_at_us=job.claimed_at_us - 600_000_000)
    ]


def test_a_look_goes_on_where_the_last_one_ended(host: DatabaseHost) -> None:
    first = host.enqueue_and_claim()
    seen = host.execute(jobs_of_host(host.id, 0.0))
    assert seen.fences == [first.fence]
    second = host.enqueue_and_claim()
    later = host.execute(jobs_of_host(host.id, 0.0, seen.complete_until))
    assert later.fences == [second.fence]
    assert later.complete_until > seen.complete_until
    assert host.execute(jobs_of_host(host.id, 0.0, later.complete_until)).fences == []
    assert (
        host.execute(jobs_of_host(host.id, 3600.0, later.complete_until)).complete_until < seen.complete_until
    ), "as far as it looked, not as it was asked"
