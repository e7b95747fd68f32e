"""Which hosts are notified of a new job: one that sleeps, or all of them. And where a claim looks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from msgspec.structs import replace
from support.database_host import Desk, until

from pgworkers.job import cancel, claim, finish
from pgworkers.job.claim import QueueCapacity, ScanRange
from pgworkers.job.copy import copy_jobs
from pgworkers.job.enqueue import enqueue
from pgworkers.job.finish import release
from pgworkers.job.hosts import notify_all_idle_hosts, pass_on_notification, register_host, set_idle_queues
from pgworkers.job.model import NewJob, Verdict
from pgworkers.master.claim_policy import ClaimPositions, ScanKind
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS

PLAIN = NewJob("t", queue="a", priority=0, max_attempts=3, max_crashes=3)


@pytest.fixture
def desk(dsn: str) -> Iterator[Desk]:
    options = " ".join(f"-c {name}={value}" for name, value in HOST_PLANNER_SETTINGS.items())
    with psycopg.connect(dsn, autocommit=True, options=options) as conn:
        desk = Desk(conn, "pgworkers")
        desk.register()
        desk.listen()
        yield desk


def told(desk: Desk) -> list[str]:
    return [payload for _, payload in desk.notices()]


def test_only_who_sleeps_is_notified(desk: Desk) -> None:
    desk.execute(enqueue(PLAIN, is_own_transaction=True))
    assert told(desk) == [], "nobody sleeps"
    # The function cannot know for sure that it is called in a transaction of its own: on a bad day it had rather notify.
    by_function = enqueue(NewJob("t", queue="a", meta_json="{}"))
    until(lambda: desk.execute(by_function) and told(desk) == [])
    until(lambda: desk.conn.execute("SELECT pgworkers.enqueue('t', queue => 'a')") and told(desk) == [])
    desk.execute(set_idle_queues(desk.host, ["b", "a"]))
    for way in (enqueue(PLAIN, is_own_transaction=True), by_function):
        desk.execute(way)
        assert told(desk) == [f"one:a:{desk.host}"]
    desk.execute(enqueue(replace(PLAIN, queue="c"), is_own_transaction=True))
    assert told(desk) == [], "of a queue that nobody asked about"
    desk.execute(set_idle_queues(desk.host, ["b"]))
    desk.execute(enqueue(PLAIN, is_own_transaction=True))
    assert told(desk) == []


def test_in_a_longer_transaction_all_hosts_are_notified_if_none_sleeps_yet(desk: Desk) -> None:
    """Which hosts sleep when it commits cannot be known while it runs."""
    with desk.conn.transaction():
        desk.conn.execute("SELECT pg_sleep(0.05)")
        desk.execute(enqueue(NewJob("t", queue="a", meta_json="{}")))
    assert told(desk) == ["ready:a"]
    desk.conn.execute("CREATE TABLE public.orders (id int)")
    desk.conn.execute(
        "WITH o AS (INSERT INTO public.orders VALUES (1) RETURNING id) SELECT pgworkers.enqueue('t', queue => 'b') FROM o"
    )
    with desk.conn.transaction():
        desk.execute(enqueue(PLAIN))
    assert "ready:a" in told(desk)
    copy_jobs(desk.conn, desk.schema, [PLAIN])
    assert told(desk) == ["ready:a"]


def sleepers(desk: Desk, count: int, tasks: tuple[str, ...] = ("t",)) -> list[str]:
    """The ids of so many more hosts that sleep for queue a."""
    ids = [str(uuid.uuid4()) for _ in range(count)]
    for host in ids:
        desk.execute(register_host(host, "box", 4711, "", "app.py", "1", ["a"], tasks, 30.0))
        desk.execute(set_idle_queues(host, ["a"]))
        desk.conn.execute(f'LISTEN "{host}"')
    return ids


def test_one_of_the_sleeping_hosts_is_notified_of_a_job(desk: Desk) -> None:
    hosts = sleepers(desk, 4)
    chosen = set[str]()
    for _ in range(200):  # the chance that one of four is never chosen is smaller than that of a broken disk
        desk.execute(enqueue(PLAIN, is_own_transaction=True))
        [payload] = told(desk)
        kind, queue, host = payload.split(":")
        assert (kind, queue) == ("one", "a")
        chosen.add(host)
    assert chosen == set(hosts)


def test_a_transaction_notifies_one_host_however_many_jobs_it_enqueues(desk: Desk) -> None:
    hosts = sleepers(desk, 4)
    with desk.conn.transaction():
        for _ in range(5):
            desk.execute(enqueue(PLAIN))
    [payload] = told(desk)
    assert payload in {f"ready:a:{host}" for host in hosts}, "the host is to pass it on when it is full"
    desk.conn.execute("SELECT pgworkers.enqueue('t', queue => 'a') FROM generate_series(1, 5)")
    assert len({payload.rpartition(":")[2] for payload in told(desk)}) == 1


def test_all_hosts_are_notified_of_many_jobs(desk: Desk) -> None:
    sleepers(desk, 2)
    copy_jobs(desk.conn, desk.schema, [PLAIN] * 3)
    assert told(desk) == ["ready:a"]
    jobs = desk.take(3)
    desk.execute(release(desk.host, [job.fence for job in jobs]))
    assert told(desk) == ["ready:a"]


def test_a_job_that_is_given_back_is_for_another_host(desk: Desk) -> None:
    [other] = sleepers(desk, 1)
    desk.execute(set_idle_queues(desk.host, ["a"]))
    for _ in range(20):
        desk.put()
        [job] = desk.take()
        told(desk)
        desk.execute(release(desk.host, [job.fence]))
        assert told(desk) == [f"one:a:{other}"]
        desk.take()


@pytest.mark.parametrize(
    "unfit",
    [
        "UPDATE pgworkers.host SET renewed_at = now() - lease / 3",
        "UPDATE pgworkers.host SET tasks = '{other}'",
    ],
    ids=["has not renewed lately", "does not know the task"],
)
def test_a_host_that_may_not_come_is_not_chosen(desk: Desk, unfit: str) -> None:
    sleepers(desk, 3)
    desk.conn.execute(unfit)
    desk.execute(enqueue(PLAIN, is_own_transaction=True))
    assert told(desk) == ["ready:a"], "no host fits: all are notified"
    [fit] = sleepers(desk, 1)
    for _ in range(20):
        desk.execute(enqueue(PLAIN, is_own_transaction=True))
        assert told(desk) == [f"one:a:{fit}"]


def test_a_full_host_passes_a_notification_on_and_is_not_chosen_again(desk: Desk) -> None:
    """Each host that passes it on leaves the sleepers, so it ends with the last one."""
    hosts = set(sleepers(desk, 3))
    desk.execute(set_idle_queues(desk.host, ["a", "b"]))
    passing = desk.host
    while hosts:
        desk.execute(pass_on_notification(passing, ["a"], ["t"]))
        [payload] = told(desk)
        passing = payload.removeprefix("ready:a:")
        hosts.remove(passing)
    desk.execute(pass_on_notification(passing, ["a"], ["t"]))
    assert told(desk) == [], "all are full"
    assert desk.conn.execute("SELECT queue FROM pgworkers.idle_host").fetchall() == [("b",)]


def test_a_host_that_found_a_missed_job_lets_all_be_notified_for_a_while(desk: Desk) -> None:
    sleepers(desk, 3)
    desk.execute(set_idle_queues(desk.host, ["a", "b"]))
    desk.execute(notify_all_idle_hosts(desk.host, ["a"]))
    for _ in range(20):
        desk.execute(enqueue(PLAIN, is_own_transaction=True))
        assert told(desk) == ["ready:a"]
    desk.execute(enqueue(replace(PLAIN, queue="b"), is_own_transaction=True))
    assert told(desk) == [f"one:b:{desk.host}"], "another queue"
    desk.conn.execute("UPDATE pgworkers.idle_host SET notify_all_until = now() WHERE queue = 'a'")
    desk.execute(enqueue(PLAIN, is_own_transaction=True))
    [payload] = told(desk)
    assert payload.startswith("one:a:")


def test_a_host_learns_for_which_queues_no_other_host_sleeps(desk: Desk) -> None:
    assert desk.execute(set_idle_queues(desk.host, ["a", "b"])) == {"a", "b"}
    [other] = sleepers(desk, 1)
    assert desk.execute(set_idle_queues(desk.host, ["a", "b"])) == {"b"}
    assert desk.execute(set_idle_queues(other, ["a", "b"])) == frozenset()


def test_a_host_that_is_gone_is_not_asleep(desk: Desk) -> None:
    desk.execute(set_idle_queues(desk.host, ["a"]))
    desk.conn.execute("DELETE FROM pgworkers.host")
    assert desk.conn.execute("SELECT count(*) FROM pgworkers.idle_host").fetchone() == (0,)
    desk.execute(set_idle_queues(desk.host, ["a"]))  # swept, and not yet registered again
    assert desk.conn.execute("SELECT count(*) FROM pgworkers.idle_host").fetchone() == (0,)


class Looking:
    """A host's claims with a memory, under a snapshot that somebody holds."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.positions = ClaimPositions(60.0)
        self.whole = True

    def look(self, count: int, *, head: bool) -> list[int]:
        places = self.positions.ranges(["a"], ScanKind.HEAD if head else ScanKind.POSITIONS)
        query = claim.claim(self.desk.host, [QueueCapacity("a", count)], ["t"], scan_ranges=places)
        claimed = self.desk.execute(query)
        self.whole = head and self.positions.record_scan(claimed, {"a": count}, 0.0, ScanKind.HEAD)
        self.positions.record_jobs(claimed)
        for job in claimed:
            self.desk.end(job)
        return [job.id for job in claimed]

    def pages(self, *, head: bool) -> int:
        places = self.positions.ranges(["a"], ScanKind.HEAD if head else ScanKind.POSITIONS)
        query = claim.claim(self.desk.host, [QueueCapacity("a", 10)], ["t"], scan_ranges=places)
        with self.desk.conn.transaction(force_rollback=True):
            cursor = self.desk.conn.execute(
                b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers"),
                query.params,
            )
            (found,) = cursor.fetchone() or ([],)
        plan = found[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.fixture
def looking(desk: Desk, dsn: str) -> Iterator[Looking]:
    """3,000 jobs came and went while a snapshot was held; 100 are left."""
    with psycopg.connect(dsn) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM pgworkers.job")
        desk.conn.execute(
            "INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, 3100)"
        )
        looking = Looking(desk)
        desk.conn.execute(
            "UPDATE pgworkers.job SET state = 'running', host = %s, lease = 1 WHERE id <= 2990", [desk.host]
        )
        desk.conn.execute("DELETE FROM pgworkers.job WHERE id <= 2990")
        desk.conn.execute("VACUUM pgworkers.job")
        assert looking.look(10, head=True) == list(range(2991, 3001))
        yield looking
        old.rollback()


def test_under_a_held_snapshot_a_remembered_place_costs_nothing(looking: Looking) -> None:
    from_head, from_place = looking.pages(head=True), looking.pages(head=False)
    assert from_head > from_place + 40, (
        "the broken twin: a look from the head goes through the pages of all that are gone"
    )
    for batch in range(10):
        assert looking.look(10, head=False) == list(range(3001 + 10 * batch, 3011 + 10 * batch))
    assert looking.look(10, head=False) == []


def test_higher_and_lower_priorities_are_found_without_the_head(looking: Looking) -> None:
    desk = looking.desk
    low, high = desk.put(priority=-5), desk.put(priority=7)
    assert looking.look(1, head=False) == [high]
    assert looking.look(90, head=False) == list(range(3001, 3091))
    assert looking.look(90, head=False) == [*range(3091, 3101), low]
    newer = desk.put(priority=7), desk.put(priority=-5)
    assert looking.look(5, head=False) == [*newer]


def test_what_comes_up_before_the_place_is_found_from_the_head(looking: Looking, dsn: str) -> None:
    """A late commit, a retry and a job that was given back: all have lower numbers than what was found since."""
    desk = looking.desk
    with psycopg.connect(dsn) as late:
        late.execute("SELECT pgworkers.enqueue('t', queue => 'a')")
        again = desk.put()
        assert looking.look(101, head=False)[-1] == again
        [job] = [job for job in [desk.put()] for job in desk.take()]
        desk.execute(
            finish.retry(
                desk.host,
                [
                    finish.JobRetry(
                        **job.fence._asdict(),
                        verdict=Verdict.ERROR,
                        delay_seconds=0.0,
                    )
                ],
            )
        )
        last = desk.put()
        assert looking.look(1, head=True) == [job.id]
        assert looking.look(10, head=False) == [last]
        late.commit()
    assert looking.look(10, head=False) == []
    assert looking.look(10, head=True) == [again - 1]


def test_steps_find_what_comes_up_before_the_place_and_none_of_them_reads_all(
    looking: Looking, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgworkers.master.claim_policy.MIN_STEP_IDS", 500)
    desk = looking.desk
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, 30)")
        last = desk.put()
        assert looking.look(200, head=False)[-1] == last
        late.commit()
    desk.conn.execute("INSERT INTO pgworkers.job (id, queue, task) VALUES (7, 'a', 't')")
    from_head = looking.pages(head=True)
    looking.positions.record_duration(1.0, 0.0, ScanKind.HEAD, includes_limited=True, jobs=0)  # it was slow
    found, read, looks = list[int](), list[int](), 0
    looking.whole = False
    while not looking.whole:
        read.append(looking.pages(head=True))
        found += looking.look(10, head=True)
        looks += 1
        assert looks < 20
    assert sorted(found) == [7, *range(last - 30, last)]
    assert max(read) < from_head
    assert looking.look(5, head=False) == []
    assert desk.put() == last + 1
    assert looking.look(5, head=False) == [last + 1], "the place has not moved"


def test_a_backlog_that_commits_late_is_followed(looking: Looking, dsn: str) -> None:
    """One look from the head finds it, and the others go on from there."""
    desk = looking.desk
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, 100)")
        ahead = desk.put()
        assert looking.look(200, head=False)[-1] == ahead
        late.commit()
    assert looking.look(10, head=False) == []
    assert len(looking.look(10, head=True)) == 10
    assert len(looking.look(50, head=False)) == 50
    assert len(looking.look(50, head=False)) == 40


def test_a_claim_by_place_asks_for_no_more_than_there_is_room_for(desk: Desk) -> None:
    for priority in (3, 2, 1):
        for _ in range(5):
            desk.put(priority=priority)
    places = {"a": [ScanRange(3, 3, 1), ScanRange(2, 2, 1), ScanRange(1, 1, 1)]}
    claimed = desk.execute(claim.claim(desk.host, [QueueCapacity("a", 7)], ["t"], scan_ranges=places))
    assert [job.priority for job in claimed] == [3] * 5 + [2] * 2
    desk.execute(cancel.cancel(claimed[0].id))
    left = desk.execute(
        claim.claim(desk.host, [QueueCapacity("a", 99)], ["t"], scan_ranges={"a": [ScanRange(2, 2, 1)]})
    )
    assert len(left) == 3


def test_limits_wait_for_a_claim_that_asks_for_them(desk: Desk) -> None:
    held = desk.put(concurrency_key="k")
    free = desk.put()
    wants = [QueueCapacity("a", 5)]
    assert [job.id for job in desk.execute(claim.claim(desk.host, wants, ["t"], include_limited=False))] == [
        free
    ]
    assert [job.id for job in desk.execute(claim.claim(desk.host, wants, ["t"]))] == [held]
