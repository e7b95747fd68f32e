"""Claim: who may run what, in which order, and never more than was asked for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.database_host import DatabaseHost

from pgworkers.job import cancel, claim, queues
from pgworkers.job.model import JobState

JOINS = [
    "enable_hashjoin",
    "enable_mergejoin",
    "enable_nestloop",
    "enable_material",
    "enable_memoize",
    "enable_tidscan",
]


def test_a_claimed_job_has_all_that_a_worker_needs(host: DatabaseHost) -> None:
    job_id = host.enqueue(
        args='{"n": 7}',
        timeout=1.5,
        memory=1 << 30,
        deadline=3600.0,
        meta_json='{"why": "nightly"}',
        max_attempts=4,
    )
    (job,) = host.claim()
    assert (job.id, job.lease, job.attempt, job.crashes) == (job_id, 1, 1, 0)
    assert (job.queue, job.task, job.args, job.meta) == ("a", "t", '{"n": 7}', '{"why": "nightly"}')
    assert (job.timeout_seconds, job.memory_bytes, job.max_attempts, job.max_crashes) == (1.5, 1 << 30, 4, 3)
    assert job.seconds_to_deadline is not None
    assert 3500 < job.seconds_to_deadline <= 3600
    assert job.ready_seconds >= 0
    assert (job.checkpoint, job.errors, job.is_cancel_requested) == (None, [], False)
    seen = host.job_view(job_id)
    assert (seen.state, str(seen.host)) == (JobState.CLAIMED, host.id)
    assert seen.started_at is not None


def test_higher_priority_first_then_the_order_of_enqueueing(host: DatabaseHost) -> None:
    low, high, also_low = host.enqueue(), host.enqueue(priority=5), host.enqueue()
    assert [job.id for job in host.claim(2)] == [high, low]
    assert [job.id for job in host.claim(2)] == [also_low]


def test_what_must_not_run_is_left_alone(host: DatabaseHost) -> None:
    host.enqueue(task="unknown")
    host.enqueue(delay=60.0)
    host.enqueue(queue="b")
    host.enqueue(expires=0.0)
    assert host.claim(10) == []


def test_a_paused_queue_gives_nothing_and_holds_up_no_other(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a", "b"]))
    held, free = host.enqueue(), host.enqueue(queue="b")
    assert host.execute(queues.pause_queue("a"))
    wants = [claim.QueueCapacity("a", 5), claim.QueueCapacity("b", 5)]
    assert [job.id for job in host.execute(claim.claim(host.id, wants, ["t"]))] == [free]
    assert host.execute(queues.resume_queue("a"))
    assert [job.id for job in host.claim(5)] == [held]


def test_a_throttled_queue_gives_nothing_until_it_has_cooled_down(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"]))
    host.enqueue()
    host.execute(queues.throttle_queue("a", 3600.0))
    assert host.claim() == []
    host.conn.execute("UPDATE pgworkers.queue SET throttled_until = throttled_until - interval '1 h'")
    assert host.claim()


#: Of queue a, what a claim does that knows places: a step, and what lies behind it.
STEPS = [claim.ScanRange(0, 0, 1, 10), claim.ScanRange(0, 0, 11)]


HOWS = [
    {},
    {"scan_ranges": {"a": STEPS}},
    {"oldest_first_seconds": 0.0},
    {"oldest_first_seconds": 60.0, "scan_ranges": {"a": STEPS}},
]


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("switched_off", [[], *([name] for name in JOINS), JOINS])
def test_never_more_than_asked_whatever_the_join(
    host: DatabaseHost, switched_off: list[str], how: dict[str, Any]
) -> None:
    _put_sixty(host)
    host.conn.execute("ANALYZE pgworkers.job")
    _never_more_than_asked(host, switched_off, how)


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_never_more_than_asked_with_statistics_of_an_empty_table(
    host: DatabaseHost, how: dict[str, Any]
) -> None:
    """One row is expected then, and the choice of what to claim may well be made once for each row that there is."""
    host.conn.execute("ANALYZE pgworkers.job")
    _put_sixty(host)
    _never_more_than_asked(host, ["enable_hashjoin", "enable_mergejoin", "enable_material"], how)


def _put_sixty(host: DatabaseHost) -> None:
    for name in "abc":
        for _ in range(20):
            host.enqueue(queue=name)


def _never_more_than_asked(host: DatabaseHost, switched_off: list[str], how: dict[str, Any]) -> None:
    known = {row[0] for row in host.conn.execute("SELECT name FROM pg_settings").fetchall()}
    for setting in known & set(switched_off):
        host.conn.execute(f"SET {setting} = off")  # a fixed list, above
    wants = [
        claim.QueueCapacity("a", 3),
        claim.QueueCapacity("b", 1),
        claim.QueueCapacity("c", 0),
        claim.QueueCapacity("none", 9),
    ]
    for _ in range(7):  # past the fifth the statement is prepared
        claimed = host.execute(claim.claim(host.id, wants, ["t"], **how))
        by_queue = [job.queue for job in claimed]
        assert len(claimed) == len({job.id for job in claimed})
        assert by_queue.count("a") <= 3, "more were claimed than asked for"
        assert by_queue.count("b") == 1
        assert by_queue.count("c") == 0
    assert host.conn.execute("SELECT count(*) FROM pgworkers.job WHERE state = 'running'").fetchone() == (27,)


def test_a_queue_named_twice_counts_twice_and_no_row_is_claimed_twice(host: DatabaseHost) -> None:
    ids = [host.enqueue() for _ in range(5)]
    claimed = host.execute(
        claim.claim(host.id, [claim.QueueCapacity("a", 1), claim.QueueCapacity("a", 2)], ["t"])
    )
    assert [job.id for job in claimed] == ids[:3]


def test_a_row_that_another_session_holds_is_skipped(host: DatabaseHost, other: DatabaseHost) -> None:
    first, second = host.enqueue(), host.enqueue()
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [first])
        assert [job.id for job in host.claim(2)] == [second]
    assert [job.id for job in host.claim(2)] == [first]


def test_two_hosts_claiming_at_once_get_disjoint_sets_and_everything(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    ids = {host.enqueue() for _ in range(300)}
    got: dict[str, list[int]] = {host.id: [], other.id: []}

    def work(mine: DatabaseHost) -> None:
        while claimed := mine.claim(7):
            got[mine.id] += [job.id for job in claimed]

    threads = [threading.Thread(target=work, args=[mine]) for mine in (host, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A row locked by a claim that had not committed is skipped: one more look takes the rest.
    rest = [job.id for job in host.claim(300)]
    everything = got[host.id] + got[other.id] + rest
    assert sorted(everything) == sorted(ids)


def test_a_row_that_changed_between_snapshot_and_lock_is_claimed_once_or_next_time(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job_id = host.enqueue()
    with other.conn.transaction():
        other.conn.execute("UPDATE pgworkers.job SET priority = 3 WHERE id = %s", [job_id])
        assert host.claim() == []
    (job,) = host.claim()
    assert (job.id, job.lease) == (job_id, 1)


def test_every_claim_raises_the_fence(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    for lease in (2, 3, 4):
        assert host.retry_job(job, delay_seconds=0) == "written"
        (job,) = host.claim()
        assert job.lease == lease


def test_a_cancelled_job_is_never_claimed(host: DatabaseHost) -> None:
    job_id = host.enqueue()
    assert host.execute(cancel.cancel(job_id)) == "cancelled"
    assert host.claim() == []


def test_asking_for_nothing_claims_nothing(host: DatabaseHost) -> None:
    host.enqueue()
    assert host.execute(claim.claim(host.id, [], ["t"])) == []
    assert host.execute(claim.claim(host.id, [claim.QueueCapacity("a", 5)], [])) == []
    assert host.claim(-3) == []
