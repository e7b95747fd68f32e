"""Concurrency limits: counted from running rows, kept between hosts that claim at once, without blocking other jobs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.connect_only_login import stranger_session
from support.database_host import DatabaseHost, blocked, until

from pgworkers.job import claim, hosts, maintenance, model, queues
from pgworkers.job.model import JobState
from pgworkers.limits import cluster_slots, concurrency
from pgworkers.postgres import migrate
from pgworkers.specs import TaskSpec

Session = Callable[[], psycopg.Connection[Any]]


def declare(host: DatabaseHost, **limits: Any) -> None:
    host.execute(queues.declare_tasks([TaskSpec("t", "a", **limits)]))


def ids(jobs: list[model.ClaimedJob]) -> list[int]:
    return [job.id for job in jobs]


def take(host: DatabaseHost, count: int = 100) -> list[model.ClaimedJob]:
    """Claim twice: the first claim may only have put jobs behind their limit."""
    return host.claim(count) + host.claim(count)


def test_no_more_of_a_task_run_than_its_limit_and_the_next_when_one_ended(host: DatabaseHost) -> None:
    declare(host, concurrency=2)
    jobs = [host.enqueue() for _ in range(5)]
    first = take(host)
    assert ids(first) == jobs[:2]
    assert take(host) == []
    host.finish_job(first[0])
    assert ids(take(host)) == jobs[2:3]


def test_no_more_of_a_key_run_than_the_task_says_and_one_if_it_says_nothing(host: DatabaseHost) -> None:
    one, other = host.enqueue(concurrency_key="x"), host.enqueue(concurrency_key="y")
    host.enqueue(concurrency_key="x")
    assert ids(host.claim(10)) == [one, other]
    declare(host, concurrency_per_key=3)
    more = [host.enqueue(concurrency_key="x") for _ in range(4)]
    assert len(host.claim(10)) == 2
    assert len(more) == 4


def test_a_key_counts_over_tasks_and_queues(host: DatabaseHost) -> None:
    tasks = ("t", "u")
    host.enqueue(task="t", concurrency_key="x")
    host.enqueue(task="u", concurrency_key="x", queue="b")
    wants = [claim.QueueCapacity("a", 5), claim.QueueCapacity("b", 5)]
    (job,) = host.execute(claim.claim(host.id, wants, list(tasks)))
    assert host.execute(claim.claim(host.id, wants, list(tasks))) == []
    host.finish_job(job)
    assert len(host.execute(claim.claim(host.id, wants, list(tasks)))) == 1


def test_both_limits_hold_for_a_job_that_has_both(host: DatabaseHost) -> None:
    declare(host, concurrency=3, concurrency_per_key=2)
    for key in ("x", "x", "x", "y", "y"):
        host.enqueue(concurrency_key=key)
    host.enqueue()
    taken = take(host) + take(host)
    assert len(taken) == 3
    keys = host.conn.execute(
        "SELECT concurrency_key, count(*) FROM pgworkers.job WHERE state = 'running' GROUP BY 1"
    ).fetchall()
    assert dict(keys)["x"] <= 2


def test_a_blocked_key_hides_nothing_behind_it(host: DatabaseHost) -> None:
    """However many of its jobs stand at the head of the queue, and whether the others have a key or none."""
    host.conn.execute(
        "INSERT INTO pgworkers.job (queue, task, priority, concurrency_key)"
        " SELECT 'a', 't', 9, 'noisy' FROM generate_series(1, 5000)"
    )
    quiet, free = host.enqueue(concurrency_key="quiet"), host.enqueue()
    first = host.claim(1)
    assert host.job_view(first[0].id).state is JobState.CLAIMED
    assert {job.id for job in host.claim(5)} == {quiet, free}


def test_limited_and_free_jobs_share_one_order(host: DatabaseHost) -> None:
    low, keyed, high = host.enqueue(), host.enqueue(concurrency_key="x", priority=1), host.enqueue(priority=2)
    also = host.enqueue(concurrency_key="y", priority=3)
    assert ids(host.claim(2)) == [also, high]
    assert ids(host.claim(2)) == [keyed, low]


def test_a_limit_of_an_operator_wins_until_it_is_removed(host: DatabaseHost) -> None:
    declare(host, concurrency=1)
    host.execute(concurrency.set_limit("task", "t", 3))
    for _ in range(6):
        host.enqueue()
    jobs = take(host)
    assert len(jobs) == 3
    found = host.execute(concurrency.list_limits())
    assert [(limit.kind, limit.name, limit.slots, limit.running, limit.set_by) for limit in found] == [
        ("task", "t", 3, 3, "operator")
    ]
    assert host.execute(concurrency.set_limit("task", "t", None))
    host.finish_job(jobs[0])
    assert take(host) == []
    assert [limit.set_by for limit in host.execute(concurrency.list_limits())] == ["app"]


def test_the_limit_of_each_key_is_listed_with_its_fullest_key(host: DatabaseHost) -> None:
    declare(host, concurrency_per_key=2)
    for key in ("x", "x", "x", "y"):
        host.enqueue(concurrency_key=key)
    assert len(take(host)) == 3
    found = host.execute(concurrency.list_limits())
    assert [(limit.kind, limit.name, limit.slots, limit.running, limit.set_by) for limit in found] == [
        ("each key of", "t", 2, 2, "app")
    ]


def test_what_runs_already_counts_when_a_limit_is_set(host: DatabaseHost) -> None:
    running = [host.enqueue_and_claim() for _ in range(2)]
    host.execute(concurrency.set_limit("task", "t", 2))
    host.enqueue()
    assert take(host) == []
    host.finish_job(running[0])
    assert len(take(host)) == 1


def test_what_a_claim_in_flight_takes_counts_when_a_limit_is_set(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    """The claim began before the limit was set and does not know of it. It commits after limit_running_jobs() has looked."""
    for _ in range(15):
        host.enqueue()
    with host.conn.transaction():
        running = host.claim(10)
        other.execute(concurrency.set_limit("task", "t", 3))
        assert take(other) == [], "nobody knows what the claim in flight takes"
    assert len(running) == 10
    assert take(other) == []
    for job in running[:7]:
        host.finish_job(job)
    assert take(other) == [], "three still run"
    host.finish_job(running[7])
    assert len(take(other)) == 1
    assert other.conn.execute("SELECT FROM pgworkers.recent_limit").fetchall() == []


def test_a_mark_that_is_younger_than_a_claim_in_flight_hides_none_of_its_jobs(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    for _ in range(15):
        host.enqueue()
    with host.conn.transaction():
        running = host.claim(10)
        other.execute(concurrency.set_limit("task", "t", 3))
        other.conn.execute(
            "UPDATE pgworkers.recent_limit SET since = since - interval '2 s', older_transactions = NULL"
        )
        first = take(other)
        assert len(first) == 3, "it has waited long enough"
        other.conn.execute(
            "INSERT INTO pgworkers.limit_scan_start (kind, name, since, older_running_ids) VALUES ('task', 't', now(), %s)",
            [ids(first)],
        )
    for job in first:
        other.finish_job(job)
    assert take(other) == []
    for job in running[:8]:
        host.finish_job(job)
    assert len(take(other)) == 1


def test_a_running_job_that_is_locked_counts_when_a_limit_is_set(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    running = host.enqueue_and_claim()
    host.enqueue()
    host.enqueue()
    with host.conn.transaction():
        host.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [running.id])
        other.execute(concurrency.set_limit("task", "t", 2))
        assert len(take(other)) == 1, "a slot is taken by the one that could not be marked"
    assert take(other) == []


def test_a_writer_that_is_not_over_holds_up_a_new_limit_for_a_second_only(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    with host.conn.transaction():
        host.enqueue(task="u")
        other.enqueue()
        other.execute(concurrency.set_limit("task", "t", 1))
        assert take(other) == []
        other.conn.execute("UPDATE pgworkers.recent_limit SET since = since - interval '1 s'")
        assert len(take(other)) == 1
        other.conn.execute("UPDATE pgworkers.recent_limit SET since = since - interval '1 minute'")
        other.enqueue()
        assert take(other) == []
    # Claims of a full task end before its limit is looked at.
    other.conn.execute("UPDATE pgworkers.concurrency SET slots = 2")
    assert len(take(other)) == 1
    assert other.conn.execute("SELECT FROM pgworkers.recent_limit").fetchall() == []


@pytest.mark.parametrize("turned", [False, True])
def test_limits_of_several_tasks_are_locked_in_one_order(
    host: DatabaseHost, other: DatabaseHost, turned: bool
) -> None:
    """By their rows in `mutex`. A claim that holds the first and needs the second cannot deadlock, whatever their names."""
    names = [f"t{n}" for n in range(20)]
    rows = dict(
        host.conn.execute("SELECT n, pgworkers.limit_mutex('task', n) FROM unnest(%s::text[]) AS n", [names])
    )
    one, two = next(
        (one, two)
        for one in names
        for two in names
        if one < two and (rows[one] > rows[two] if turned else rows[one] < rows[two])
    )
    low, high = sorted((rows[one], rows[two]))
    lock = "SELECT FROM pgworkers.mutex WHERE id = %s FOR UPDATE"
    specs = [TaskSpec(name, "a", concurrency=1) for name in (one, two)]
    with host.conn.transaction():
        host.conn.execute(lock, [low])
        deploy = other.in_thread(queues.declare_tasks(specs))
        until(lambda: blocked(host.conn, other.conn))
        host.conn.execute(lock, [high])
    deploy.result(60)


@pytest.mark.parametrize("aged", [None, 60.0], ids=["in turn", "the oldest first"])
def test_a_claim_says_of_each_job_whether_another_may_wait_for_its_place(
    host: DatabaseHost, aged: float | None
) -> None:
    """Its host searches for that one after the end; after the others there is none to search for."""
    host.execute(queues.declare_tasks([TaskSpec("t", "a"), TaskSpec("narrow", "a", concurrency=2)]))
    free, keyed = host.enqueue(), host.enqueue(concurrency_key="x")
    narrow, both = host.enqueue(task="narrow"), host.enqueue(task="narrow", concurrency_key="y")
    wants, tasks = [claim.QueueCapacity("a", 10)], ["t", "narrow"]
    looks = (aged, None, aged)  # the one in the middle moves the job of the limited task behind its limit
    found = [job for how in looks for job in host.execute(claim.claim(host.id, wants, tasks, how))]
    assert {job.id: job.is_limited for job in found} == {free: False, keyed: True, narrow: True, both: True}


def test_a_limit_of_zero_stops_one_tenant_only(host: DatabaseHost) -> None:
    host.execute(concurrency.set_limit("key", "bad", 0))
    host.enqueue(concurrency_key="bad")
    good = host.enqueue(concurrency_key="good")
    assert ids(host.claim(5)) == [good]
    host.execute(concurrency.set_limit("key", "bad", None))
    assert len(host.claim(5)) == 1


def test_jobs_without_a_limit_are_claimed_next_to_a_limited_task(host: DatabaseHost) -> None:
    host.execute(queues.declare_tasks([TaskSpec("t", "a", concurrency=1), TaskSpec("u", "a")]))
    for _ in range(3):
        host.enqueue()
    free = [host.enqueue(task="u") for _ in range(3)]
    got: list[int] = []
    for _ in range(4):
        got += ids(host.claim(2, tasks=("t", "u")))
    assert set(free) <= set(got)
    assert len(got) == 4


def test_a_lost_host_holds_its_slots_until_it_is_rescued_and_no_longer(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job_id = other.enqueue(concurrency_key="x", max_attempts=5)
    (lost,) = other.claim()
    host.enqueue(concurrency_key="x")
    assert host.claim() == []
    other.execute(hosts.remove_host(other.id))
    assert [job.id for job in host.execute(maintenance.rescue_jobs(host.id, 10))] == [lost.id] == [job_id]
    assert len(host.claim()) == 1


def test_the_second_of_two_claims_at_once_sees_what_the_first_one_took(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    """The race itself: the second claim begins before the first commits and leaves what has the same limit to the next."""
    host.listen()
    host.enqueue(concurrency_key="x")
    host.enqueue(concurrency_key="x", queue="b")
    with host.conn.transaction():
        assert len(host.claim()) == 1
        assert other.claim(5, queue="b") == []
    assert other.claim(5, queue="b") == []
    assert ("pgworkers", "ready:b") in host.notifications(), "another claim looks again at once"


def test_nothing_without_a_limit_or_with_another_waits_for_a_limit(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    first, _, of_another, free = [host.enqueue(concurrency_key=key) for key in ("x", "x", "y", None)]
    with host.conn.transaction():
        host.conn.execute(
            "SELECT FROM pgworkers.mutex WHERE id = pgworkers.limit_mutex('key', 'x') FOR UPDATE"
        )
        assert set(ids(other.claim(5))) == {of_another, free}
    assert ids(other.claim(5)) == [first]


def test_a_login_that_holds_every_advisory_lock_stops_no_claim(emptied: str, host: DatabaseHost) -> None:
    with stranger_session(emptied) as stranger:
        for name in ("task t", "key x"):
            stranger.execute(
                "SELECT pg_advisory_lock(hashtextextended(%s, c.oid::bigint)) FROM pg_class c"
                " WHERE c.relname = 'job' AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'pgworkers')",
                [name],
            )
        host.enqueue(concurrency_key="x")
        host.enqueue()
        host.conn.execute("SET statement_timeout = '5s'")
        assert len(host.claim(5)) == 2


def test_without_the_lock_the_same_race_takes_one_too_many(host: DatabaseHost, other: DatabaseHost) -> None:
    """The broken twin: the test above can fail."""
    row = host.conn.execute("SELECT pg_get_functiondef('pgworkers.admit_limited_jobs'::regproc)").fetchone()
    assert row is not None
    (whole,) = row
    try:
        host.conn.execute(whole.replace("FOR UPDATE SKIP LOCKED);", ");"))
        host.enqueue(concurrency_key="x")
        host.enqueue(concurrency_key="x", queue="b")
        with host.conn.transaction():
            assert len(host.claim()) == 1
            assert len(other.claim(5, queue="b")) == 1
    finally:
        host.conn.execute(whole)


@pytest.mark.parametrize("seed", [1, 2])
def test_many_hosts_at_once_never_exceed_a_limit_and_leave_nothing_undone(
    session: Session, schema: str, host: DatabaseHost, seed: int
) -> None:
    """Keys of 2, a task of 5, free jobs between; each host looks, after each claim, at what runs in the whole cluster."""
    host.execute(
        queues.declare_tasks([TaskSpec("t", "a", concurrency_per_key=2), TaskSpec("u", "a", concurrency=5)])
    )
    keys = ["x", "y", "z"]
    for n in range(240):
        match n % 3:
            case 0:
                host.enqueue(concurrency_key=keys[n // 3 % 3])
            case 1:
                host.enqueue(task="u", concurrency_key=keys[n // 3 % 3] if n % 2 else None)
            case _:
                host.enqueue(task="free")
    wrong: list[Any] = []
    done: list[int] = []

    def work(mine: DatabaseHost, rand: random.Random) -> None:
        held: list[model.ClaimedJob] = []
        while True:
            held += mine.claim(rand.randint(1, 6), tasks=("t", "u", "free"))
            over = mine.conn.execute(
                "SELECT 'key', concurrency_key, count(*) FROM pgworkers.job WHERE host IS NOT NULL"
                " AND concurrency_key IS NOT NULL AND task = 't' GROUP BY 2 HAVING count(*) > 2"
                " UNION ALL SELECT 'task', task, count(*) FROM pgworkers.job WHERE host IS NOT NULL AND task = 'u'"
                " GROUP BY 2 HAVING count(*) > 5"
            ).fetchall()
            wrong.extend(over)
            rand.shuffle(held)
            while held and rand.random() < 0.7:
                job = held.pop()
                while (
                    answer := mine.finish_job(job)
                ) == "locked":  # by a claim that counts the jobs of a new limit
                    time.sleep(0.001)
                assert answer == "written"
                done.append(job.id)
            left = mine.conn.execute("SELECT count(*) FROM pgworkers.job").fetchone()
            if left == (len(held),) == (0,) or (left == (0,)):
                return

    hosts = [DatabaseHost(session(), schema) for _ in range(4)]
    for each in hosts:
        each.register()
    threads = [
        threading.Thread(target=work, args=[h, random.Random(seed * 10 + n)]) for n, h in enumerate(hosts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert len(done) == len(set(done)) == 240


def test_hundreds_of_keys_take_turns(host: DatabaseHost) -> None:
    """More lanes than one claim compares: none is always left out."""
    count = claim.GROUPS_COMPARED_PER_QUEUE * 3
    host.conn.execute(
        "INSERT INTO pgworkers.job (queue, task, concurrency_key) SELECT 'a', 't', 'k' || n FROM generate_series(1, %s) n",
        [count],
    )
    got: set[int] = set()
    for _ in range(200):
        got |= set(ids(host.claim(50)))
        if len(got) == count:
            break
    assert len(got) == count


def test_limits_hold_in_a_schema_of_another_name(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        migrate.up(conn, "second")
        host = DatabaseHost(conn, "second")
        host.register()
        declare(host, concurrency=2, concurrency_per_key=1)
        for key in ("x", "x", "y", "z"):
            host.enqueue(concurrency_key=key)
        assert len(take(host)) == 2
        host.execute(queues.declare_queues(["a"], {"a": 3}))
        host.execute(cluster_slots.grant_slots("a", 3, {host.id: 5}))
        assert host.execute(cluster_slots.acknowledge_slots(host.id, {"a": 0})) == {"a": 3}
        assert host.execute(queues.throttle_queue("a")) is queues.ThrottleAnswer.THROTTLED
