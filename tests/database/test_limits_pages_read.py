"""What a claim reads where jobs stand behind limits: the same however many of them wait. Pages are counted, not seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost
from test_query_plans import STATISTICS

from pgworkers.job import claim, queues
from pgworkers.limits import concurrency
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS
from pgworkers.postgres.statements import Query
from pgworkers.specs import TaskSpec

Db = psycopg.Connection[Any]
#: Claims that are measured: each begins at a lane of its own.
TRIES = 8
PAST_HOST = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def db(dsn: str) -> Iterator[Db]:
    """A database of its own: dead rows and statistics are part of the test. The session is like those of a host."""
    options = " ".join(f"-c {name}={value}" for name, value in HOST_PLANNER_SETTINGS.items())
    with psycopg.connect(dsn, autocommit=True, options=options) as conn:
        yield conn


@pytest.fixture
def host(db: Db) -> DatabaseHost:
    host = DatabaseHost(db, "pgworkers")
    host.register()
    return host


def pages(db: Db, query: Query[Any]) -> int:
    """How many pages a statement touches, those that its functions touch included; what it does is undone."""
    with db.transaction(force_rollback=True):
        text = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.statement.render("pgworkers")
        (found,) = db.execute(text, query.params).fetchone() or ([],)
    root = found[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


def most_pages(db: Db, query: Query[Any]) -> int:
    """The dearest of some tries. The first reads the catalog, too, and is not counted."""
    return max([pages(db, query) for _ in range(TRIES + 1)][1:])


def wait_with_keys(db: Db, jobs: int, keys: int, task: str = "t") -> None:
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, concurrency_key)"
        " SELECT 'a', %s, 'tenant ' || n %% %s FROM generate_series(1, %s) n",
        [task, keys, jobs],
    )


@pytest.mark.usefixtures("groups_are_searched")
@pytest.mark.parametrize("keys", [2, 7, 99])
def test_a_claim_of_jobs_with_few_keys_reads_no_more_from_a_backlog_ten_times_as_large(
    db: Db, host: DatabaseHost, keys: int
) -> None:
    query = claim.claim(host.id, [claim.QueueCapacity("a", 10)], ["t"])
    wait_with_keys(db, 2_000, keys)
    before = most_pages(db, query)
    wait_with_keys(db, 18_000, keys)
    db.execute("VACUUM ANALYZE pgworkers.job")
    assert most_pages(db, query) < 1.5 * before + 50


def test_a_full_task_is_passed_whole_however_many_tenants_it_has(db: Db, host: DatabaseHost) -> None:
    """The other jobs of the queue are found by the first claim, at the cost of a claim without that task."""
    host.execute(
        queues.declare_tasks([TaskSpec("full", "a", concurrency=5), TaskSpec("t", "a"), TaskSpec("z", "a")])
    )
    ours = [host.enqueue("t", concurrency_key="one"), host.enqueue("z", concurrency_key="other")]
    query = claim.claim(host.id, [claim.QueueCapacity("a", 3)], ["full", "t", "z"])
    before = most_pages(db, query)
    wait_with_keys(db, 5, 5, "full")
    host.claim(5, tasks=("full",))
    wait_with_keys(db, 5_000, 5_000, "full")
    assert most_pages(db, query) < before + 50
    assert [job.id for job in host.execute(query)] == ours


def test_a_task_with_one_slot_leaves_the_other_workers_to_the_other_tasks(host: DatabaseHost) -> None:
    host.execute(queues.declare_tasks([TaskSpec("full", "a", concurrency=1), TaskSpec("t", "a")]))
    first = host.enqueue("full", concurrency_key="x", priority=5)
    for key in ("y", "z"):
        host.enqueue("full", concurrency_key=key, priority=5)
    other = host.enqueue("t", concurrency_key="x y")
    query = claim.claim(host.id, [claim.QueueCapacity("a", 2)], ["full", "t"])
    assert [job.id for job in host.execute(query)] == [first, other]


def test_a_key_with_room_is_found_behind_many_without(db: Db, host: DatabaseHost) -> None:
    wait_with_keys(db, 2_000, 1_000)
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = %s, lease = 1, claimed_at = now() WHERE id <= 1000",
        [host.id],
    )
    for nth in range(5):  # each search begins at a place of its own
        late = host.enqueue(concurrency_key=f"late {nth}")
        assert [job.id for job in host.claim(3)] == [late]


@pytest.mark.usefixtures("groups_are_searched")
@pytest.mark.parametrize("statistics", STATISTICS)
def test_lanes_are_walked_by_their_index_whatever_the_planner_believes(
    db: Db, host: DatabaseHost, statistics: Callable[[Db], None]
) -> None:
    """20,000 jobs without a key and 3,000 with one: by any other index a claim would read thousands of pages."""
    statistics(db)
    wait_with_keys(db, 3_000, 30)
    assert most_pages(db, claim.claim(host.id, [claim.QueueCapacity("a", 10)], ["t", "u"])) < 1_500


@pytest.fixture
def snapshot(dsn: str) -> Iterator[None]:
    """No dead row can be removed."""
    with psycopg.connect(dsn) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM pgworkers.job")
        yield


def ran(db: Db, jobs: int = 5_000) -> None:
    """Jobs that ran to their end behind the limits of task t and key x, as they look to a count."""
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, concurrency_key, state, host, lease, claimed_at)"
        " SELECT 'past', 't', 'x', 'running', gen_random_uuid(), 1, now() FROM generate_series(1, %s)",
        [jobs],
    )
    db.execute("DELETE FROM pgworkers.job WHERE queue = 'past'")


def marks(db: Db) -> set[tuple[str, str, int]]:
    """The marks, each with the number of jobs that were running when it was made."""
    return set(
        db.execute(
            "SELECT kind, name, cardinality(older_running_ids) FROM pgworkers.limit_scan_start"
        ).fetchall()
    )


def limited(host: DatabaseHost, slots: int) -> None:
    host.execute(queues.declare_tasks([TaskSpec("t", "a", concurrency=slots, concurrency_per_key=slots)]))


def test_slots_are_counted_without_reading_all_that_ran_while_a_snapshot_is_held(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    limited(host, 5)
    host.enqueue_and_claim(concurrency_key="x")
    for _ in range(3):
        host.enqueue(concurrency_key="x")
    query = claim.claim(host.id, [claim.QueueCapacity("a", 1)], ["t"])
    before = most_pages(db, query)
    for held in (1, 2, 3):
        ran(db)
        assert len(host.claim()) == 1  # it reads them, once, and makes the marks
        ran(db, 30)
        host.enqueue(concurrency_key="x")
        assert most_pages(db, query) < before + 60
        assert marks(db) == {("task", "t", held), ("key", "x", held)}


def test_what_ran_before_a_mark_is_counted_until_it_ends(db: Db, host: DatabaseHost, snapshot: None) -> None:
    limited(host, 3)
    old = [host.enqueue_and_claim(concurrency_key="x") for _ in range(2)]
    ran(db)
    for _ in range(5):
        host.enqueue(concurrency_key="x")
    assert len(host.claim()) == 1
    assert marks(db) == {("task", "t", 2), ("key", "x", 2)}
    assert host.claim(5) == []
    host.finish_job(old[0])
    assert len(host.claim(5)) == 1
    assert host.claim(5) == []
    assert host.retry_job(old[1], delay_seconds=0.0) == "written", (
        "the same job may come back, with another claim"
    )
    assert len(host.claim(5)) == 1


def test_a_claim_that_began_before_a_mark_leaves_its_limit_to_the_next(
    dsn: str, db: Db, host: DatabaseHost, snapshot: None
) -> None:
    """What it claims would be older than the mark and not be counted."""
    limited(host, 3)
    with psycopg.connect(dsn, autocommit=True) as conn:
        other = DatabaseHost(conn, "pgworkers")
        with conn.transaction():
            conn.execute("SELECT now()")
            ran(db)
            host.enqueue_and_claim(concurrency_key="x")
            assert len(marks(db)) == 2
            host.enqueue(concurrency_key="x")
            assert other.claim() == []
        assert len(other.claim()) == 1


def test_a_mark_of_a_clock_that_was_set_back_is_dropped(db: Db, host: DatabaseHost, snapshot: None) -> None:
    limited(host, 2)
    ran(db)
    first = host.enqueue_and_claim(concurrency_key="x")
    db.execute("UPDATE pgworkers.limit_scan_start SET since = since + interval '1 hour'")
    db.execute(
        "UPDATE pgworkers.job SET claimed_at = claimed_at + interval '1 hour' WHERE id = %s", [first.id]
    )
    for _ in range(3):
        host.enqueue(concurrency_key="x")
    assert host.claim(5) == []
    assert marks(db) == set()
    assert len(host.claim(5)) == 1


def test_slots_are_counted_the_same_when_a_mark_is_pruned(
    dsn: str, db: Db, host: DatabaseHost, snapshot: None
) -> None:
    limited(host, 3)
    old = host.enqueue_and_claim(concurrency_key="x")
    ran(db)
    for _ in range(5):
        host.enqueue(concurrency_key="x")
    assert len(host.claim()) == 1
    assert marks(db) == {("task", "t", 1), ("key", "x", 1)}
    with psycopg.connect(dsn, autocommit=True) as conn:
        claimer = DatabaseHost(conn, "pgworkers")
        claimer.register()
        with conn.transaction():
            assert len(claimer.claim()) == 1  # the last slot, and not committed
            assert host.execute(concurrency.prune_limit_scan_starts(0.0, 10)) == 2
            assert host.claim(5) == [], "the limit is locked by the other claim"
    assert host.claim(5) == []
    host.finish_job(old)
    assert len(host.claim(5)) == 1


def test_a_new_limit_counts_what_ran_before_the_last_mark(db: Db, host: DatabaseHost, snapshot: None) -> None:
    free = [host.enqueue_and_claim() for _ in range(2)]
    limited(host, 3)
    db.execute("UPDATE pgworkers.job SET behind_limit = false")
    db.execute(
        "INSERT INTO pgworkers.limit_scan_start (kind, name, since, older_running_ids) VALUES ('task', 't', now(), '{}')"
    )
    host.execute(concurrency.set_limit("task", "t", 2))
    host.enqueue()
    assert host.claim() + host.claim() == []
    host.finish_job(free[0])
    assert len(host.claim() + host.claim()) == 1


@pytest.mark.usefixtures("groups_are_searched")
def test_the_order_is_strict_although_few_jobs_of_each_lane_are_read_at_first(
    db: Db, host: DatabaseHost
) -> None:
    host.execute(queues.declare_tasks([TaskSpec("t", "a", concurrency_per_key=50)]))
    wait_with_keys(db, 90 * 60, 90)
    first = [host.enqueue(priority=1, concurrency_key="urgent") for _ in range(55)][:50]
    query = claim.claim(host.id, [claim.QueueCapacity("a", 60)], ["t"])
    assert [job.id for job in host.execute(query)] == [*first, *range(1, 11)]
    assert most_pages(db, query) < 4_000, "not fifty jobs of each lane"


@pytest.fixture
def groups_are_searched(db: Db) -> None:
    """Claims do not read the first jobs of task t."""
    db.execute(
        "INSERT INTO pgworkers.group_scan_start (queue, task, first_id, newest_id, valid_until)"
        " VALUES ('a', 't', 0, 0, 'infinity')"
    )


def claimed_of_a_lane(db: Db, host: DatabaseHost, priority: int = 0) -> None:
    """10,000 jobs of the lane of key x were claimed and ended."""
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, concurrency_key, priority)"
        " SELECT 'a', 't', 'x', %s FROM generate_series(1, 10000)",
        [priority],
    )
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = %s, claimed_at = now() WHERE state = 'ready'",
        [host.id],
    )
    db.execute("DELETE FROM pgworkers.job WHERE host IS NOT NULL")


@pytest.mark.usefixtures("groups_are_searched")
def test_the_remains_of_what_was_claimed_of_a_lane_are_passed_by_while_a_snapshot_is_held(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    """That there are a task and a lane is seen at their newest job, and where its oldest one is says a mark."""
    limited(host, 1)
    host.enqueue(concurrency_key="x")
    query = claim.claim(host.id, [claim.QueueCapacity("a", 1)], ["t"])
    before = most_pages(db, query)
    host.finish_job(host.claim()[0])
    for nth in (1, 2):
        claimed_of_a_lane(db, host)
        for _ in range(3):
            host.enqueue(concurrency_key="x")
        db.execute("UPDATE pgworkers.group_scan_start SET valid_until = now() WHERE group_hash IS NOT NULL")
        host.finish_job(host.claim()[0])  # it walks over them, once, and makes the marks
        db.execute(
            "UPDATE pgworkers.group_scan_start SET valid_until = 'infinity' WHERE group_hash IS NOT NULL"
        )
        assert db.execute(
            "SELECT queue, task FROM pgworkers.group_scan_start WHERE group_hash IS NOT NULL"
        ).fetchall() == [("a", "t")]
        assert most_pages(db, query) < before + 60, nth
        host.finish_job(host.claim()[0])
        host.finish_job(host.claim()[0])


@pytest.mark.usefixtures("groups_are_searched")
def test_the_order_of_a_lane_is_strict_from_its_mark_on(db: Db, host: DatabaseHost, snapshot: None) -> None:
    limited(host, 1)
    claimed_of_a_lane(db, host)
    low = host.enqueue(concurrency_key="x", priority=-1)
    first, second = (host.enqueue(concurrency_key="x") for _ in range(2))
    last_claim = host.claim()[0]
    assert last_claim.id == first
    db.execute("UPDATE pgworkers.group_scan_start SET valid_until = 'infinity' WHERE group_hash IS NOT NULL")
    high = [host.enqueue(concurrency_key="x", priority=priority) for priority in (1, 9)]
    for expected in (*reversed(high), second, low):
        host.finish_job(last_claim)
        last_claim = host.claim()[0]
        assert last_claim.id == expected


@pytest.mark.usefixtures("groups_are_searched")
def test_a_job_that_came_back_before_the_mark_of_its_lane_is_found_when_the_lane_is_looked_at_from_its_head(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    limited(host, 1)
    claimed_of_a_lane(db, host)
    first, *others = (host.enqueue(concurrency_key="x") for _ in range(5))
    (job,) = host.claim()
    assert job.id == first
    db.execute(
        "UPDATE pgworkers.group_scan_start SET first_id = %s, valid_until = 'infinity' WHERE group_hash IS NOT NULL",
        [first + 1],
    )
    assert host.retry_job(job, delay_seconds=0.0) == "written"
    for other in others[:2]:
        (job,) = host.claim()
        assert job.id == other
        host.finish_job(job)
    db.execute("UPDATE pgworkers.group_scan_start SET valid_until = now() WHERE group_hash IS NOT NULL")
    (job,) = host.claim()
    assert job.id == others[2], "this claim looks at the head, for the next one"
    host.finish_job(job)
    assert [found.id for found in host.claim()] == [first]
    (longest,) = db.execute(
        "SELECT max(valid_until) - now() FROM pgworkers.group_scan_start WHERE group_hash IS NOT NULL"
    ).fetchone() or (None,)
    assert longest is None or longest.total_seconds() < 6


@pytest.mark.usefixtures("groups_are_searched")
def test_the_mark_of_a_lane_moves_on_with_its_jobs(db: Db, host: DatabaseHost, snapshot: None) -> None:
    """However many jobs were claimed since the lane was last looked at from its head."""
    limited(host, 1)
    host.enqueue(concurrency_key="x")
    query = claim.claim(host.id, [claim.QueueCapacity("a", 1)], ["t"])
    before = most_pages(db, query)
    claimed_of_a_lane(db, host)
    host.enqueue(concurrency_key="x")
    host.finish_job(host.claim()[0])  # it makes the mark
    db.execute("UPDATE pgworkers.group_scan_start SET valid_until = 'infinity' WHERE group_hash IS NOT NULL")
    for _ in range(2):
        claimed_of_a_lane(db, host)
        for _ in range(2):
            host.enqueue(concurrency_key="x")
        host.finish_job(host.claim()[0])
        assert most_pages(db, query) < before + 60
    assert db.execute(
        "SELECT valid_until = 'infinity' FROM pgworkers.group_scan_start WHERE group_hash IS NOT NULL"
    ).fetchall() == [(True,)]


@pytest.mark.usefixtures("groups_are_searched")
def test_a_job_before_the_mark_is_found_at_once_when_nothing_is_ready_behind_it(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    limited(host, 1)
    claimed_of_a_lane(db, host)
    last = host.enqueue(concurrency_key="x")
    (job,) = host.claim()
    db.execute(
        "UPDATE pgworkers.group_scan_start SET first_id = %s, valid_until = 'infinity' WHERE group_hash IS NOT NULL",
        [last + 1],
    )
    db.execute("LISTEN pgworkers")
    assert host.retry_job(job, delay_seconds=0.0) == "written"
    list(db.notifies(timeout=0))
    assert host.claim() == [], "this claim begins at the mark, and moves it"
    told = [notify.payload for notify in db.notifies(timeout=5, stop_after=1)]
    assert told == ["ready:a"], "the host claims again, at once"
    assert [found.id for found in host.claim()] == [last]


def test_the_first_jobs_of_a_task_are_claimed_in_strict_order_however_many_keys_they_have(
    db: Db, host: DatabaseHost
) -> None:
    wait_with_keys(db, 900, 300)
    assert [job.id for job in host.claim(200)] == list(range(1, 201))
    urgent = host.enqueue(concurrency_key="urgent", priority=1)
    assert [job.id for job in host.claim(3)] == [urgent, 201, 202]


def test_jobs_of_keys_without_a_slot_are_passed_by(db: Db, host: DatabaseHost) -> None:
    """They are the first jobs of the task, and more than a claim reads of them."""
    wait_with_keys(db, 500, 1)
    (first,) = host.claim()
    others = [host.enqueue(concurrency_key=f"other {n}") for n in range(3)]
    assert sorted(job.id for job in host.claim(10)) == others
    host.finish_job(first)
    assert [job.id for job in host.claim(10)] == [2]


def test_a_claim_of_many_keys_costs_in_proportion_to_their_number(db: Db, host: DatabaseHost) -> None:
    """Eight times as many keys: a join by nested loops would compare 64 times as many pairs."""
    wait_with_keys(db, 2_000, 2_000)

    def fastest(count: int) -> float:
        query = claim.claim(host.id, [claim.QueueCapacity("a", count)], ["t"])
        times = []
        for _ in range(5):
            with db.transaction(force_rollback=True):
                db.execute("SELECT")
                started = time.perf_counter()
                assert len(host.execute(query)) == count
                times.append(time.perf_counter() - started)
        return min(times)

    fastest(10)
    assert fastest(2_000) < 20 * fastest(250)


def test_a_task_without_a_limit_is_not_counted(db: Db, host: DatabaseHost) -> None:
    host.enqueue(concurrency_key="one")
    query = claim.claim(host.id, [claim.QueueCapacity("a", 1)], ["t"])
    before = most_pages(db, query)
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, concurrency_key, state, host, lease, claimed_at)"
        " SELECT 'a', 't', 'tenant ' || n, 'running', %s, 1, now() FROM generate_series(1, 5000) n",
        [host.id],
    )
    assert most_pages(db, query) < before + 60


def claimed_of_many_keys(db: Db, jobs: int = 20_000) -> None:
    """Jobs of 2,000 keys were claimed and ended."""
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, concurrency_key)"
        " SELECT 'a', 't', 'tenant ' || n %% 2000 FROM generate_series(1, %s) n",
        [jobs],
    )
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = %s, claimed_at = now()"
        " WHERE state = 'ready' AND concurrency_key LIKE 'tenant %%'",
        [PAST_HOST],
    )
    db.execute("DELETE FROM pgworkers.job WHERE host = %s", [PAST_HOST])


def test_the_remains_of_many_keys_are_passed_by_while_a_snapshot_is_held(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    """The mark of the task moves on with its jobs. No claim reads what is left of keys that have no job."""
    host.enqueue(concurrency_key="x")
    query = claim.claim(host.id, [claim.QueueCapacity("a", 1)], ["t"])
    before = most_pages(db, query)
    host.finish_job(host.claim()[0])
    for nth in (1, 2):
        claimed_of_many_keys(db)
        for _ in range(2):
            host.enqueue(concurrency_key="x")
        host.finish_job(host.claim()[0])  # it reads them, once, and moves the mark
        assert most_pages(db, query) < before + 60, nth
        host.finish_job(host.claim()[0])
        db.execute("UPDATE pgworkers.group_scan_start SET valid_until = 'infinity'")
    assert db.execute("SELECT queue, task, group_hash FROM pgworkers.group_scan_start").fetchall() == [
        ("a", "t", None)
    ]


def test_a_job_that_came_back_before_the_mark_of_its_task_is_found_by_the_next_scan_from_the_head(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    claimed_of_many_keys(db)
    first, *others = (host.enqueue(concurrency_key=f"key {n}") for n in range(6))
    (job,) = host.claim()
    assert job.id == first
    db.execute("UPDATE pgworkers.group_scan_start SET first_id = %s, valid_until = 'infinity'", [first + 1])
    assert host.retry_job(job, delay_seconds=0.0) == "written"
    assert [job.id for job in host.claim(2)] == others[:2]
    db.execute("UPDATE pgworkers.group_scan_start SET valid_until = now()")
    assert [job.id for job in host.claim()] == [others[2]], "this claim scans from the head, for the next one"
    assert [job.id for job in host.claim()] == [first]


def test_a_job_before_the_mark_of_its_task_is_found_at_once_when_a_claim_wants_more(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    claimed_of_many_keys(db)
    first, *others = (host.enqueue(concurrency_key=f"key {n}") for n in range(4))
    (job,) = host.claim()
    db.execute("UPDATE pgworkers.group_scan_start SET first_id = %s, valid_until = 'infinity'", [first + 1])
    assert host.retry_job(job, delay_seconds=0.0) == "written"
    assert [job.id for job in host.claim(10)] == [first, *others]


def test_a_first_job_that_cannot_run_does_not_hold_up_the_scans_of_its_task(
    db: Db, host: DatabaseHost, snapshot: None
) -> None:
    """Behind it are the remains of all that was claimed since, so the groups are searched for a while."""
    host.enqueue_and_claim(concurrency_key="stuck")
    host.enqueue(concurrency_key="stuck")
    host.enqueue(concurrency_key="x")
    host.finish_job(host.claim()[0])
    claimed_of_many_keys(db, 30_000)
    for _ in range(2):
        host.enqueue(concurrency_key="x")
    host.finish_job(host.claim()[0])
    assert db.execute(
        "SELECT priority FROM pgworkers.group_scan_start WHERE group_hash IS NULL"
    ).fetchall() == [(None,)]
    db.execute("UPDATE pgworkers.group_scan_start SET valid_until = 'infinity'")
    assert len(host.claim()) == 1, "the groups are searched"
    db.execute("UPDATE pgworkers.group_scan_start SET valid_until = now()")
    host.claim()
    assert db.execute("SELECT FROM pgworkers.group_scan_start WHERE group_hash IS NULL").fetchall() == [], (
        "the first jobs are read again"
    )
