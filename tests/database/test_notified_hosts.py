"""Which hosts are notified of a new job: one that sleeps, or all of them. And where a claim looks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from msgspec.structs import replace
from support.database_host import DatabaseHost, until

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
def host(dsn: str) -> Iterator[DatabaseHost]:
    options = " ".join(f"-c {name}={value}" for name, value in HOST_PLANNER_SETTINGS.items())
    with psycopg.connect(dsn, autocommit=True, options=options) as conn:
        host = DatabaseHost(conn, "pgworkers")
        host.register()
        host.listen()
        yield host


def notified_payloads(host: DatabaseHost) -> list[str]:
    return [payload for _, payload in host.notifications()]


def test_only_sleeping_hosts_are_notified(host: DatabaseHost) -> None:
    host.execute(enqueue(PLAIN, is_own_transaction=True))
    assert notified_payloads(host) == [], "nobody sleeps"
    # The function cannot know for sure that it is called in a transaction of its own: on a bad day it had rather notify.
    by_function = enqueue(NewJob("t", queue="a", meta_json="{}"))
    until(lambda: host.execute(by_function) and notified_payloads(host) == [])
    until(
        lambda: (
            host.conn.execute("SELECT pgworkers.enqueue('t', queue => 'a')") and notified_payloads(host) == []
        )
    )
    host.execute(set_idle_queues(host.id, ["b", "a"]))
    for way in (enqueue(PLAIN, is_own_transaction=True), by_function):
        host.execute(way)
        assert notified_payloads(host) == [f"one:a:{host.id}"]
    host.execute(enqueue(replace(PLAIN, queue="c"), is_own_transaction=True))
    assert notified_payloads(host) == [], "of a queue that nobody asked about"
    host.execute(set_idle_queues(host.id, ["b"]))
    host.execute(enqueue(PLAIN, is_own_transaction=True))
    assert notified_payloads(host) == []


def test_in_a_longer_transaction_all_hosts_are_notified_if_none_sleeps_yet(host: DatabaseHost) -> None:
    """Which hosts sleep when it commits cannot be known while it runs."""
    with host.conn.transaction():
        host.conn.execute("SELECT pg_sleep(0.05)")
        host.execute(enqueue(NewJob("t", queue="a", meta_json="{}")))
    assert notified_payloads(host) == ["ready:a"]
    host.conn.execute("CREATE TABLE public.orders (id int)")
    host.conn.execute(
        "WITH o AS (INSERT INTO public.orders VALUES (1) RETURNING id) SELECT pgworkers.enqueue('t', queue => 'b') FROM o"
    )
    with host.conn.transaction():
        host.execute(enqueue(PLAIN))
    assert "ready:a" in notified_payloads(host)
    copy_jobs(host.conn, host.schema, [PLAIN])
    assert notified_payloads(host) == ["ready:a"]


def sleepers(host: DatabaseHost, count: int, tasks: tuple[str, ...] = ("t",)) -> list[str]:
    """Register `count` more hosts that sleep for queue a. Returns their ids."""
    ids = [str(uuid.uuid4()) for _ in range(count)]
    for host_id in ids:
        host.execute(register_host(host_id, "box", 4711, "", "app.py", "1", ["a"], tasks, 30.0))
        host.execute(set_idle_queues(host_id, ["a"]))
        host.conn.execute(f'LISTEN "{host_id}"')
    return ids


def test_one_of_the_sleeping_hosts_is_notified_of_a_job(host: DatabaseHost) -> None:
    hosts = sleepers(host, 4)
    chosen = set[str]()
    for _ in range(200):  # the chance that one of four is never chosen is smaller than that of a broken disk
        host.execute(enqueue(PLAIN, is_own_transaction=True))
        [payload] = notified_payloads(host)
        kind, queue, host_id = payload.split(":")
        assert (kind, queue) == ("one", "a")
        chosen.add(host_id)
    assert chosen == set(hosts)


def test_a_transaction_notifies_one_host_however_many_jobs_it_enqueues(host: DatabaseHost) -> None:
    hosts = sleepers(host, 4)
    with host.conn.transaction():
        for _ in range(5):
            host.execute(enqueue(PLAIN))
    [payload] = notified_payloads(host)
    assert payload in {f"ready:a:{host_id}" for host_id in hosts}, (
        "the host_id is to pass it on when it is full"
    )
    host.conn.execute("SELECT pgworkers.enqueue('t', queue => 'a') FROM generate_series(1, 5)")
    assert len({payload.rpartition(":")[2] for payload in notified_payloads(host)}) == 1


def test_all_hosts_are_notified_of_many_jobs(host: DatabaseHost) -> None:
    sleepers(host, 2)
    copy_jobs(host.conn, host.schema, [PLAIN] * 3)
    assert notified_payloads(host) == ["ready:a"]
    jobs = host.claim(3)
    host.execute(release(host.id, [job.fence for job in jobs]))
    assert notified_payloads(host) == ["ready:a"]


def test_a_job_that_is_given_back_is_for_another_host(host: DatabaseHost) -> None:
    [other] = sleepers(host, 1)
    host.execute(set_idle_queues(host.id, ["a"]))
    for _ in range(20):
        host.enqueue()
        [job] = host.claim()
        notified_payloads(host)
        host.execute(release(host.id, [job.fence]))
        assert notified_payloads(host) == [f"one:a:{other}"]
        host.claim()


@pytest.mark.parametrize(
    "unfit",
    [
        "UPDATE pgworkers.host SET renewed_at = now() - lease / 3",
        "UPDATE pgworkers.host SET tasks = '{other}'",
    ],
    ids=["has not renewed lately", "does not know the task"],
)
def test_a_host_that_may_not_come_is_not_chosen(host: DatabaseHost, unfit: str) -> None:
    sleepers(host, 3)
    host.conn.execute(unfit)
    host.execute(enqueue(PLAIN, is_own_transaction=True))
    assert notified_payloads(host) == ["ready:a"], "no host fits: all are notified"
    [fit] = sleepers(host, 1)
    for _ in range(20):
        host.execute(enqueue(PLAIN, is_own_transaction=True))
        assert notified_payloads(host) == [f"one:a:{fit}"]


def test_a_full_host_passes_a_notification_on_and_is_not_chosen_again(host: DatabaseHost) -> None:
    """Each host that passes it on leaves the sleepers, so it ends with the last one."""
    hosts = set(sleepers(host, 3))
    host.execute(set_idle_queues(host.id, ["a", "b"]))
    passing = host.id
    while hosts:
        host.execute(pass_on_notification(passing, ["a"], ["t"]))
        [payload] = notified_payloads(host)
        passing = payload.removeprefix("ready:a:")
        hosts.remove(passing)
    host.execute(pass_on_notification(passing, ["a"], ["t"]))
    assert notified_payloads(host) == [], "all are full"
    assert host.conn.execute("SELECT queue FROM pgworkers.idle_host").fetchall() == [("b",)]


def test_a_host_that_found_a_missed_job_lets_all_be_notified_for_a_while(host: DatabaseHost) -> None:
    sleepers(host, 3)
    host.execute(set_idle_queues(host.id, ["a", "b"]))
    host.execute(notify_all_idle_hosts(host.id, ["a"]))
    for _ in range(20):
        host.execute(enqueue(PLAIN, is_own_transaction=True))
        assert notified_payloads(host) == ["ready:a"]
    host.execute(enqueue(replace(PLAIN, queue="b"), is_own_transaction=True))
    assert notified_payloads(host) == [f"one:b:{host.id}"], "another queue"
    host.conn.execute("UPDATE pgworkers.idle_host SET notify_all_until = now() WHERE queue = 'a'")
    host.execute(enqueue(PLAIN, is_own_transaction=True))
    [payload] = notified_payloads(host)
    assert payload.startswith("one:a:")


def test_a_host_learns_for_which_queues_no_other_host_sleeps(host: DatabaseHost) -> None:
    assert host.execute(set_idle_queues(host.id, ["a", "b"])) == {"a", "b"}
    [other] = sleepers(host, 1)
    assert host.execute(set_idle_queues(host.id, ["a", "b"])) == {"b"}
    assert host.execute(set_idle_queues(other, ["a", "b"])) == frozenset()


def test_a_host_that_is_gone_is_not_asleep(host: DatabaseHost) -> None:
    host.execute(set_idle_queues(host.id, ["a"]))
    host.conn.execute("DELETE FROM pgworkers.host")
    assert host.conn.execute("SELECT count(*) FROM pgworkers.idle_host").fetchone() == (0,)
    host.execute(set_idle_queues(host.id, ["a"]))  # swept, and not yet registered again
    assert host.conn.execute("SELECT count(*) FROM pgworkers.idle_host").fetchone() == (0,)


class ClaimsWithPositions:
    """The claims of a host that remembers its positions, under a snapshot that another session holds."""

    def __init__(self, host: DatabaseHost) -> None:
        self.host = host
        self.positions = ClaimPositions(60.0)
        self.whole = True

    def look(self, count: int, *, head: bool) -> list[int]:
        places = self.positions.ranges(["a"], ScanKind.HEAD if head else ScanKind.POSITIONS)
        query = claim.claim(self.host.id, [QueueCapacity("a", count)], ["t"], scan_ranges=places)
        claimed = self.host.execute(query)
        self.whole = head and self.positions.record_scan(claimed, {"a": count}, 0.0, ScanKind.HEAD)
        self.positions.record_jobs(claimed)
        for job in claimed:
            self.host.finish_job(job)
        return [job.id for job in claimed]

    def pages(self, *, head: bool) -> int:
        places = self.positions.ranges(["a"], ScanKind.HEAD if head else ScanKind.POSITIONS)
        query = claim.claim(self.host.id, [QueueCapacity("a", 10)], ["t"], scan_ranges=places)
        with self.host.conn.transaction(force_rollback=True):
            cursor = self.host.conn.execute(
                b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers"),
                query.params,
            )
            (found,) = cursor.fetchone() or ([],)
        plan = found[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.fixture
def looking(host: DatabaseHost, dsn: str) -> Iterator[ClaimsWithPositions]:
    """3,000 jobs came and went while a snapshot was held; 100 are left."""
    with psycopg.connect(dsn) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM pgworkers.job")
        host.conn.execute(
            "INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, 3100)"
        )
        looking = ClaimsWithPositions(host)
        host.conn.execute(
            "UPDATE pgworkers.job SET state = 'running', host = %s, lease = 1 WHERE id <= 2990", [host.id]
        )
        host.conn.execute("DELETE FROM pgworkers.job WHERE id <= 2990")
        host.conn.execute("VACUUM pgworkers.job")
        assert looking.look(10, head=True) == list(range(2991, 3001))
        yield looking
        old.rollback()


def test_under_a_held_snapshot_a_remembered_place_costs_nothing(looking: ClaimsWithPositions) -> None:
    from_head, from_place = looking.pages(head=True), looking.pages(head=False)
    assert from_head > from_place + 40, (
        "the broken twin: a look from the head goes through the pages of all that are gone"
    )
    for batch in range(10):
        assert looking.look(10, head=False) == list(range(3001 + 10 * batch, 3011 + 10 * batch))
    assert looking.look(10, head=False) == []


def test_higher_and_lower_priorities_are_found_without_the_head(looking: ClaimsWithPositions) -> None:
    host = looking.host
    low, high = host.enqueue(priority=-5), host.enqueue(priority=7)
    assert looking.look(1, head=False) == [high]
    assert looking.look(90, head=False) == list(range(3001, 3091))
    assert looking.look(90, head=False) == [*range(3091, 3101), low]
    newer = host.enqueue(priority=7), host.enqueue(priority=-5)
    assert looking.look(5, head=False) == [*newer]


def test_what_comes_up_before_the_place_is_found_from_the_head(
    looking: ClaimsWithPositions, dsn: str
) -> None:
    """A late commit, a retry and a job that was given back: all have lower numbers than what was found since."""
    host = looking.host
    with psycopg.connect(dsn) as late:
        late.execute("SELECT pgworkers.enqueue('t', queue => 'a')")
        again = host.enqueue()
        assert looking.look(101, head=False)[-1] == again
        [job] = [job for job in [host.enqueue()] for job in host.claim()]
        host.execute(
            finish.retry(
                host.id,
                [
                    finish.JobRetry(
                        **job.fence._asdict(),
                        verdict=Verdict.ERROR,
                        delay_seconds=0.0,
                    )
                ],
            )
        )
        last = host.enqueue()
        assert looking.look(1, head=True) == [job.id]
        assert looking.look(10, head=False) == [last]
        late.commit()
    assert looking.look(10, head=False) == []
    assert looking.look(10, head=True) == [again - 1]


def test_steps_find_what_comes_up_before_the_place_and_none_of_them_reads_all(
    looking: ClaimsWithPositions, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgworkers.master.claim_policy.MIN_STEP_IDS", 500)
    host = looking.host
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, 30)")
        last = host.enqueue()
        assert looking.look(200, head=False)[-1] == last
        late.commit()
    host.conn.execute("INSERT INTO pgworkers.job (id, queue, task) VALUES (7, 'a', 't')")
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
    assert host.enqueue() == last + 1
    assert looking.look(5, head=False) == [last + 1], "the place has not moved"


def test_a_backlog_that_commits_late_is_followed(looking: ClaimsWithPositions, dsn: str) -> None:
    """One claim from the head finds it, and the others continue from there."""
    host = looking.host
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO pgworkers.job (queue, task) SELECT 'a', 't' FROM generate_series(1, 100)")
        ahead = host.enqueue()
        assert looking.look(200, head=False)[-1] == ahead
        late.commit()
    assert looking.look(10, head=False) == []
    assert len(looking.look(10, head=True)) == 10
    assert len(looking.look(50, head=False)) == 50
    assert len(looking.look(50, head=False)) == 40


def test_a_claim_by_place_asks_for_no_more_than_there_is_room_for(host: DatabaseHost) -> None:
    for priority in (3, 2, 1):
        for _ in range(5):
            host.enqueue(priority=priority)
    places = {"a": [ScanRange(3, 3, 1), ScanRange(2, 2, 1), ScanRange(1, 1, 1)]}
    claimed = host.execute(claim.claim(host.id, [QueueCapacity("a", 7)], ["t"], scan_ranges=places))
    assert [job.priority for job in claimed] == [3] * 5 + [2] * 2
    host.execute(cancel.cancel(claimed[0].id))
    left = host.execute(
        claim.claim(host.id, [QueueCapacity("a", 99)], ["t"], scan_ranges={"a": [ScanRange(2, 2, 1)]})
    )
    assert len(left) == 3


def test_limits_wait_for_a_claim_that_asks_for_them(host: DatabaseHost) -> None:
    held = host.enqueue(concurrency_key="k")
    free = host.enqueue()
    wants = [QueueCapacity("a", 5)]
    assert [job.id for job in host.execute(claim.claim(host.id, wants, ["t"], include_limited=False))] == [
        free
    ]
    assert [job.id for job in host.execute(claim.claim(host.id, wants, ["t"]))] == [held]
