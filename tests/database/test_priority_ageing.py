"""Ageing: a claim out of turn takes the oldest, so that low priority never starves."""

from __future__ import annotations

from support.database_host import Desk

from pgworkers.job import claim


def aged(desk: Desk, count: int, seconds: float = 60.0) -> list[int]:
    jobs = desk.execute(
        claim.claim(desk.host, [claim.QueueCapacity("a", count)], ["t"], min_age_seconds=seconds)
    )
    return [job.id for job in jobs]


def older(desk: Desk, *jobs: int) -> None:
    desk.conn.execute(
        "UPDATE pgworkers.job SET run_at = now() - interval '2 minutes' WHERE id = ANY (%s)", [list(jobs)]
    )


def test_the_oldest_goes_first_whatever_its_priority(desk: Desk) -> None:
    low, high = desk.put(priority=-5), desk.put(priority=9)
    lower = desk.put(priority=-9)
    older(desk, low, lower)
    assert aged(desk, 1) == [low]
    assert aged(desk, 1) == [lower]
    assert aged(desk, 1) == [high]


def test_without_old_ones_it_is_a_claim_like_any_other(desk: Desk) -> None:
    low, high, also = desk.put(), desk.put(priority=5), desk.put()
    assert aged(desk, 2) == [high, low]
    assert aged(desk, 2) == [also]


def test_jobs_behind_a_limit_grow_old_too_and_stay_within_it(desk: Desk) -> None:
    desk.put(priority=9)
    old = [desk.put(priority=-1, concurrency_key="x") for _ in range(3)]
    older(desk, *old)
    assert aged(desk, 1) == old[:1]
    assert not set(aged(desk, 9)) & set(old)


def test_what_must_not_run_does_not_run_for_being_old(desk: Desk) -> None:
    older(desk, desk.put(task="unknown"), desk.put(expires=0.0), desk.put(queue="b"))
    assert aged(desk, 10) == []


def test_many_priorities_cost_a_bounded_look_from_the_lowest(desk: Desk) -> None:
    desk.conn.execute(
        "INSERT INTO pgworkers.job (queue, task, priority) SELECT 'a', 't', n FROM generate_series(-200, 200) n"
    )
    desk.conn.execute("UPDATE pgworkers.job SET run_at = now() - interval '1 hour' WHERE priority = -200")
    assert desk.see(aged(desk, 1)[0]).priority == -200
