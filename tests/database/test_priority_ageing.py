"""Ageing: a claim out of turn takes the oldest, so that low priority never starves."""

from __future__ import annotations

from support.database_host import DatabaseHost

from pgworkers.job import claim


def aged(host: DatabaseHost, count: int, seconds: float = 60.0) -> list[int]:
    jobs = host.execute(
        claim.claim(host.id, [claim.QueueCapacity("a", count)], ["t"], oldest_first_seconds=seconds)
    )
    return [job.id for job in jobs]


def older(host: DatabaseHost, *jobs: int) -> None:
    host.conn.execute(
        "UPDATE pgworkers.job SET run_at = now() - interval '2 minutes' WHERE id = ANY (%s)", [list(jobs)]
    )


def test_the_oldest_goes_first_whatever_its_priority(host: DatabaseHost) -> None:
    low, high = host.enqueue(priority=-5), host.enqueue(priority=9)
    lower = host.enqueue(priority=-9)
    older(host, low, lower)
    assert aged(host, 1) == [low]
    assert aged(host, 1) == [lower]
    assert aged(host, 1) == [high]


def test_without_old_ones_it_is_a_claim_like_any_other(host: DatabaseHost) -> None:
    low, high, also = host.enqueue(), host.enqueue(priority=5), host.enqueue()
    assert aged(host, 2) == [high, low]
    assert aged(host, 2) == [also]


def test_jobs_behind_a_limit_grow_old_too_and_stay_within_it(host: DatabaseHost) -> None:
    host.enqueue(priority=9)
    old = [host.enqueue(priority=-1, concurrency_key="x") for _ in range(3)]
    older(host, *old)
    assert aged(host, 1) == old[:1]
    assert not set(aged(host, 9)) & set(old)


def test_what_must_not_run_does_not_run_for_being_old(host: DatabaseHost) -> None:
    older(host, host.enqueue(task="unknown"), host.enqueue(expires=0.0), host.enqueue(queue="b"))
    assert aged(host, 10) == []


def test_many_priorities_cost_a_bounded_look_from_the_lowest(host: DatabaseHost) -> None:
    host.conn.execute(
        "INSERT INTO pgworkers.job (queue, task, priority) SELECT 'a', 't', n FROM generate_series(-200, 200) n"
    )
    host.conn.execute("UPDATE pgworkers.job SET run_at = now() - interval '1 hour' WHERE priority = -200")
    assert host.job_view(aged(host, 1)[0]).priority == -200
