"""What the claimer plans, and what it makes of the answer: `ClaimPolicy`, without a database and without a clock."""

from __future__ import annotations

from math import inf

import pytest

from pgworkers.job.claim import QueueCapacity
from pgworkers.job.model import ClaimedJob
from pgworkers.master.claim_policy import (
    CLAIMS_PER_OLDEST_FIRST,
    MISSED_NOTIFICATION_SECONDS,
    SLOW_CLAIM_SECONDS,
    ClaimPolicy,
    ClaimRequest,
    ScanKind,
)
from pgworkers.master.notifications import MAX_NOTIFICATIONS_PER_WINDOW

ROOM = [QueueCapacity("q", 2), QueueCapacity("r", 1)]


def policy(*, oldest_first_seconds: float = 0.0) -> ClaimPolicy:
    return ClaimPolicy(poll_seconds=5.0, oldest_first_seconds=oldest_first_seconds, statement_timeout=10.0)


def job(job_id: int, queue: str = "q", *, ready_seconds: float = 0.0) -> ClaimedJob:
    rest = ("t", "{}", 1, 0, 3, 3, None, None, None, None, None, [])
    return ClaimedJob(job_id, 1, queue, *rest, ready_seconds, False, 0)


def plan(one: ClaimPolicy, now: float = 1.0) -> ClaimRequest:
    request = one.plan(ROOM, now)
    assert request is not None
    return request


def test_a_claim_is_for_all_queues_with_room_and_from_the_head_as_long_as_that_is_quick() -> None:
    request = plan(policy())
    assert (request.capacity, request.scan, request.ranges) == ({"q": 2, "r": 1}, ScanKind.HEAD, {})
    assert request.includes_limited
    assert request.oldest_first_seconds is None


def test_without_room_there_is_no_claim() -> None:
    assert policy().plan([], 1.0) is None


def test_a_queue_that_gave_less_than_there_was_room_for_is_not_asked_again_before_the_poll() -> None:
    one = policy()
    one.sleep.record_announcement(frozenset({"q", "r"}), 0.0, frozenset())
    one.record(plan(one), [job(1, "r")], 1.0, queues=["q", "r"])
    again = one.plan(ROOM, 2.0)
    assert again is not None
    assert again.capacity == {"r": 1}, "r was filled: there may be more"
    assert one.on_notification("q", 3.0)
    assert plan(one, 3.0).capacity == {"q": 2, "r": 1}


@pytest.mark.parametrize(("found", "again"), [([], False), ([1], False), ([1, 2], True)])
def test_a_claim_that_filled_a_queue_is_followed_by_another(found: list[int], again: bool) -> None:
    one = policy()
    one.sleep.record_announcement(frozenset({"q", "r"}), 0.0, frozenset())
    follow_up = one.record(plan(one), [job(i) for i in found], 1.0, queues=["q", "r"])
    assert follow_up.should_claim_again is again


def test_what_the_database_does_not_know_yet_is_a_reason_to_go_on() -> None:
    one = policy()
    assert one.record(plan(one), [], 1.0, queues=["q", "r"]).should_claim_again, "nothing is announced"


def test_now_and_then_the_oldest_jobs_come_first() -> None:
    one = policy(oldest_first_seconds=60.0)
    kinds = []
    for now in range(1, CLAIMS_PER_OLDEST_FIRST + 2):
        request = plan(one, float(now))
        kinds.append(request.scan)
        assert (request.oldest_first_seconds == 60.0) is (request.scan is ScanKind.OLDEST_FIRST)
        one.record(request, [job(2 * now), job(2 * now + 1)], float(now), queues=["q", "r"])
    ordinary = [ScanKind.HEAD] * (CLAIMS_PER_OLDEST_FIRST - 1)
    assert kinds == [ScanKind.OLDEST_FIRST, *ordinary, ScanKind.OLDEST_FIRST]


def test_jobs_that_this_host_alone_was_notified_of_stay_noted_while_there_may_be_more() -> None:
    one = policy()
    one.add_notified_jobs("q", is_one_job=False)
    request = plan(one)
    assert (request.notified_jobs, one.notified_jobs) == ({"q": inf}, {})
    one.record(request, [job(1), job(2)], 1.0, queues=["q", "r"])
    assert one.notified_jobs == {"q": inf}, "there was no room for more"
    one.record(plan(one), [job(3)], 2.0, queues=["q", "r"])
    assert one.notified_jobs == {}, "there are no more"


def test_queues_without_room_are_full_if_this_host_was_notified_of_them() -> None:
    one = policy()
    one.add_notified_jobs("q", is_one_job=True)
    assert one.full_queues({"q", "r"}, 1.0) == set()
    assert one.full_queues({"r"}, 1.0) == {"q"}


def test_a_queue_that_is_awake_needs_no_notification_while_there_is_room() -> None:
    one = policy()
    for _ in range(MAX_NOTIFICATIONS_PER_WINDOW + 1):
        assert one.on_notification("q", 1.0)
    one.record(plan(one), [job(1)], 1.0, queues=["q", "r"])
    assert not one.on_notification("q", 1.0)
    one.record_no_claim()
    assert one.on_notification("q", 1.0), "there is no room: a claim has to be planned"


def test_an_old_job_that_the_poll_found_was_missed_by_the_host_that_was_notified_of_it() -> None:
    one = policy()
    one.sleep.record_announcement(frozenset({"q", "r"}), 0.0, frozenset())
    one.record(plan(one), [], 1.0, queues=["q", "r"])
    late = job(1, ready_seconds=2 * MISSED_NOTIFICATION_SECONDS)
    follow_up = one.record(plan(one, 7.0), [late, job(2, "r")], 7.0, queues=["q", "r"])
    assert follow_up.missed_queues == {"q"}


def test_a_slow_claim_makes_its_queues_crowded() -> None:
    one = policy()
    one.record(plan(one), [], 1.0 + 2 * SLOW_CLAIM_SECONDS, queues=["q", "r"])
    assert one.slow_queues.is_parking(2.0)
    assert one.plan(ROOM, 2.0) is None, "the first portion is parked before"
