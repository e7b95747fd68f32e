"""The snapshot of the queues: right where it is small, bounded where it is not."""

from __future__ import annotations

from typing import Any

import psycopg
from support.database_host import DatabaseHost

from pgworkers.events import QueueDepth
from pgworkers.job import queues
from pgworkers.job.gauges import MIN_FIRST_SLICE_ROWS, count_depth, start_depth_count
from pgworkers.postgres.session_settings import HOST_PLANNER_SETTINGS
from pgworkers.postgres.statements import run

Db = psycopg.Connection[Any]


def seen(db: Db, max_count: int = 1000) -> dict[str, QueueDepth]:
    return {one.queue: one for one in run(db, "pgworkers", count_depth(max_count))}


def test_every_state_of_every_queue_is_counted(db: Db) -> None:
    host = DatabaseHost(db, "pgworkers")
    host.register()
    host.execute(queues.declare_queues(["a", "b", "empty"], {"b": 6}))
    for _ in range(3):
        host.enqueue()
    host.claim(1)
    host.enqueue(delay=60.0)
    host.enqueue(queue="b", concurrency_key="k")
    host.enqueue(queue="nobody")
    db.execute("UPDATE pgworkers.queue SET paused = true WHERE name = 'b'")
    db.execute("UPDATE pgworkers.queue SET throttled_until = now() + interval '1 minute' WHERE name = 'a'")
    found = seen(db)
    assert list(found) == ["a", "b", "empty", "nobody"]
    a, b, empty, nobody = found.values()
    assert (a.ready, a.scheduled, a.running, a.is_paused, a.limit, a.is_throttled) == (
        2,
        1,
        1,
        False,
        None,
        True,
    )
    assert (b.ready, b.scheduled, b.running, b.is_paused, b.limit, b.is_throttled) == (
        1,
        0,
        0,
        True,
        6,
        False,
    )
    assert empty == QueueDepth("empty", 0, 0, 0, 0.0, False, None, False)
    assert nobody.ready == 1, "a queue that nobody declared is not overlooked"


def test_the_oldest_ready_job_is_found_whatever_its_priority_and_lane(db: Db) -> None:
    host = DatabaseHost(db, "pgworkers")
    for priority in (-5, 0, 7):
        host.enqueue(priority=priority)
    db.execute("UPDATE pgworkers.job SET run_at = now() - interval '100 s' WHERE priority = -5")
    oldest = seen(db)["a"].oldest
    assert 100 <= oldest < 160
    host.enqueue(concurrency_key="k")
    db.execute("UPDATE pgworkers.job SET run_at = now() - interval '500 s' WHERE concurrency_key = 'k'")
    oldest = seen(db)["a"].oldest
    assert 500 <= oldest < 560


def test_undeclared_queues_are_found_before_between_and_after_declared_ones(db: Db) -> None:
    host = DatabaseHost(db, "pgworkers")
    host.execute(queues.declare_queues(["b", "d"]))
    strangers = ("A", "a", "aa", "c", "c.1", "c.2", "e", "z", "é")
    for name in strangers:
        host.enqueue(queue=name)
    host.enqueue(queue="d")
    found = seen(db)
    assert {name: one.ready for name, one in found.items()} == {**dict.fromkeys(strangers, 1), "b": 0, "d": 1}


def test_the_oldest_is_found_behind_more_than_are_counted(db: Db) -> None:
    host = DatabaseHost(db, "pgworkers")
    for priority in (7, 7, 7, -5):
        host.enqueue(priority=priority)
    db.execute("UPDATE pgworkers.job SET run_at = now() - interval '100 s' WHERE priority = -5")
    counted = seen(db, max_count=2)["a"]
    assert counted.ready == 2
    assert 100 <= counted.oldest < 160


def test_no_count_goes_beyond_the_cap_and_no_plan_reads_the_whole_table(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(
            "INSERT INTO pgworkers.job (queue, task, state, priority)"
            " SELECT 'a', 't', CASE WHEN n % 2 = 0 THEN 'ready' ELSE 'scheduled' END::pgworkers.job_state, n % 3"
            "   FROM generate_series(1, 20000) n"
        )
        for statistics in ("SELECT", "ANALYZE pgworkers.job"):
            db.execute(statistics)
            (a,) = run(db, "pgworkers", count_depth(1000))
            assert (a.ready, a.scheduled) == (1000, 1000)
            query = count_depth(1000)
            text = b"EXPLAIN (ANALYZE, FORMAT TEXT) " + query.statement.render("pgworkers")
            plan = "\n".join(row[0] for row in db.execute(text, query.params))
            assert "Seq Scan on job" not in plan, plan
            assert "Seq Scan on pgworkers.job" not in plan, plan


def many(db: Db, ready: int, scheduled: int) -> None:
    """Three queues in turn, three priorities; of what is scheduled, half is due in the same moment."""
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, priority)"
        " SELECT 'q' || n %% 3, 't', (n / 3 %% 3) - 1 FROM generate_series(1, %s) n",
        [ready],
    )
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, state, run_at)"
        " SELECT 'q' || n %% 3, 't', 'scheduled', now() + interval '1 hour' + greatest(n - %s / 2, 0) * interval '1 s'"
        "   FROM generate_series(1, %s) n",
        [scheduled, scheduled],
    )


def counted(db: Db, *, max_count: int, slice_: int) -> tuple[dict[str, tuple[int, int]], list[int]]:
    """Ready and scheduled jobs of each queue, counted in slices; how many rows of `job` each statement read."""
    under_way = run(db, "pgworkers", start_depth_count(1, max_count, slice_))
    read = []
    with db.transaction():
        for name, value in HOST_PLANNER_SETTINGS.items():  # as a host's sessions are
            db.execute("SELECT set_config(%s, %s, true)", [name, value])
        while query := under_way.next_query():
            text = b"EXPLAIN (ANALYZE, FORMAT JSON) " + query.statement.render("pgworkers")
            ((plan,),) = db.execute(text, query.params)
            read.append(sum(rows_read(plan[0]["Plan"])))
            run(db, "pgworkers", query)
    return {one.queue: (one.ready, one.scheduled) for one in under_way.queues}, read


def rows_read(node: dict[str, Any]) -> list[int]:
    own = [round(node["Actual Rows"] * node["Actual Loops"])] if "Scan" in node["Node Type"] else []
    return (own if node.get("Index Name") else []) + [
        n for child in node.get("Plans", []) for n in rows_read(child)
    ]


def test_slices_count_each_job_once_and_read_no_more_than_their_share(db: Db) -> None:
    many(db, 6000, 3000)
    for statistics in ("SELECT", "VACUUM ANALYZE pgworkers.job"):
        db.execute(statistics)
        found, read = counted(db, max_count=100_000, slice_=600)
        assert found == {f"q{n}": (2000, 1000) for n in range(3)}
        assert len(read) >= 3 * 2 + 4, "it was counted in slices"
        assert max(read) <= 2 * 600, read


def test_slices_end_at_the_cap(db: Db) -> None:
    many(db, 9000, 6000)
    found, _ = counted(db, max_count=2000, slice_=600)
    assert [ready for ready, _ in found.values()] == [2000] * 3
    assert 2000 <= sum(scheduled for _, scheduled in found.values()) < 2000 + 600


def test_the_first_statement_looks_less_far_where_there_are_many_queues(db: Db) -> None:
    assert [start_depth_count(queues).params["max_count"] for queues in (0, 1, 2, 10, 1000)] == [
        5000,
        5000,
        2500,
        MIN_FIRST_SLICE_ROWS,
        MIN_FIRST_SLICE_ROWS,
    ]  # type: ignore[index]


def test_what_goes_away_while_it_is_counted_does_no_harm(db: Db) -> None:
    many(db, 6000, 3000)
    under_way = run(db, "pgworkers", start_depth_count(1, 100_000, 600))
    db.execute("DELETE FROM pgworkers.job")
    while query := under_way.next_query():
        run(db, "pgworkers", query)
    first = under_way.queues
    assert [(one.ready, one.scheduled) for one in first] == [(600, 200)] * 3, "what the first statement saw"


def test_the_oldest_is_found_behind_the_first_statement(db: Db) -> None:
    """As after many retries: the first of the queue are the youngest."""
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, run_at)"
        " SELECT 'a', 't', now() - CASE WHEN n > 1900 THEN interval '1 hour' ELSE interval '0' END"
        "   FROM generate_series(1, 2000) n"
    )
    under_way = run(db, "pgworkers", start_depth_count(1, 100_000, 600))
    assert under_way.queues[0].oldest < 1800
    while query := under_way.next_query():
        run(db, "pgworkers", query)
    (a,) = under_way.queues
    assert a.ready == 2000
    assert 3600 <= a.oldest < 3660


def test_the_count_of_scheduled_jobs_in_unknown_queues_is_bounded(db: Db) -> None:
    host = DatabaseHost(db, "pgworkers")
    host.execute(queues.declare_queues(["a"]))
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, state, run_at)"
        " SELECT 'nobody', 't', 'scheduled', now() + interval '1 hour' FROM generate_series(1, 20000) n"
    )
    under_way = run(db, "pgworkers", start_depth_count(1, 3000, 600))
    statements = 0
    while query := under_way.next_query():
        run(db, "pgworkers", query)
        statements += 1
    assert statements == 4, "600 by the first statement, 600 by each other, 3,000 at most"


def test_a_lock_on_the_table_of_hosts_delays_no_count_and_is_reported(dsn: str, db: Db) -> None:
    host = DatabaseHost(db, "pgworkers")
    host.register()
    for _ in range(3):
        host.enqueue()
    host.claim(2)
    worker = '[{"queue": "a", "slot": 0, "pid": 7, "state": "busy"}]'
    db.execute("UPDATE pgworkers.host SET workers = %s", [worker])
    free = seen(db)["a"]
    assert (free.ready, free.running, free.is_exact) == (2, 1, True)
    with psycopg.connect(dsn) as locks:
        locks.execute("LOCK pgworkers.host IN ACCESS EXCLUSIVE MODE")
        db.execute("SET statement_timeout = '5s'")
        locked = seen(db)["a"]
    assert (locked.ready, locked.running, locked.is_exact) == (1, 2, False)
