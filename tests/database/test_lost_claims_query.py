"""Mine: what a host holds according to the tables."""

from __future__ import annotations

from support.database_host import Desk

from pgworkers.job.hosts import jobs_of_host


def test_a_host_sees_what_it_claimed_and_nothing_of_others(desk: Desk, other: Desk) -> None:
    ours, theirs, ended = desk.run_one(), other.run_one(), desk.run_one()
    desk.end(ended)
    desk.put()
    assert desk.execute(jobs_of_host(desk.host, 0.0)).fences == [ours.fence]
    assert other.execute(jobs_of_host(other.host, 0.0)).fences == [theirs.fence]


def test_what_was_claimed_just_now_may_still_be_on_its_way(desk: Desk) -> None:
    desk.run_one()
    assert desk.execute(jobs_of_host(desk.host, 3600.0)).fences == []


def test_a_clock_that_was_set_forward_makes_no_claim_old(desk: Desk) -> None:
    """By the row it is as old as after a jump; its answer may still be on its way."""
    job = desk.run_one()
    desk.conn.execute("UPDATE pgworkers.job SET claimed_at = claimed_at - interval '10 min'")
    (clock,) = desk.conn.execute("SELECT now() - interval '10 min'").fetchone() or (None,)
    assert desk.execute(jobs_of_host(desk.host, 60.0, host_clock=clock)).fences == []
    assert desk.execute(jobs_of_host(desk.host, 60.0)).fences == [
        job.fence._replace(claimed_at_us=job.claimed_at_us - 600_000_000)
    ]


def test_a_look_goes_on_where_the_last_one_ended(desk: Desk) -> None:
    first = desk.run_one()
    seen = desk.execute(jobs_of_host(desk.host, 0.0))
    assert seen.fences == [first.fence]
    second = desk.run_one()
    later = desk.execute(jobs_of_host(desk.host, 0.0, seen.complete_until))
    assert later.fences == [second.fence]
    assert later.complete_until > seen.complete_until
    assert desk.execute(jobs_of_host(desk.host, 0.0, later.complete_until)).fences == []
    assert (
        desk.execute(jobs_of_host(desk.host, 3600.0, later.complete_until)).complete_until
        < seen.complete_until
    ), "as far as it looked, not as it was asked"
