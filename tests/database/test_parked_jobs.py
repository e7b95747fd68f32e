"""Jobs of tasks that a host does not know: parked in portions, passed in one probe, claimed by a host that knows them."""

from __future__ import annotations

import psycopg
import pytest
from support.database_host import Desk
from test_limits_pages_read import Db, db, desk, most_pages

from pgworkers.job import claim, queues
from pgworkers.job.claim import PARK_PORTION_ROWS, park
from pgworkers.job.gauges import unknown_tasks
from pgworkers.specs import TaskSpec

__all__ = ["db", "desk"]
QUERY_TASKS = ["t"]


def crowd(db: Db, jobs: int, task: str = "'unknown'") -> None:
    db.execute(
        f"INSERT INTO pgworkers.job (queue, task) SELECT 'a', {task} FROM generate_series(1, %s) n", [jobs]
    )


def park_all(desk: Desk) -> int:
    """All portions; how many jobs were moved."""
    moved = 0
    while True:
        found = desk.execute(park("a", QUERY_TASKS))
        moved += sum(found.jobs_by_task.values())
        if found.last_place is None or not found.jobs_by_task:
            return moved


@pytest.mark.parametrize("task", ["'unknown'", "'unknown ' || n"], ids=["one task", "many tasks"])
def test_a_claim_passes_unknown_tasks_in_one_probe(db: Db, desk: Desk, task: str) -> None:
    query = claim.claim(desk.host, [claim.QueueCapacity("a", 3)], ["s", "t", "zz"])
    desk.put()
    before = most_pages(db, query)
    crowd(db, 5 * PARK_PORTION_ROWS, task)
    late = desk.put()
    crowded = most_pages(db, query)
    assert crowded > before + 100, "the twin: without parking it walks over all of them"
    assert park_all(desk) == 5 * PARK_PORTION_ROWS
    db.execute("VACUUM ANALYZE pgworkers.job")
    assert most_pages(db, query) < before + 60
    assert [job.id for job in desk.take(3)][1:] == [late]


def test_one_portion_looks_at_a_bounded_number_of_jobs_and_says_where_it_ended(db: Db, desk: Desk) -> None:
    known = desk.put(priority=-1)
    crowd(db, PARK_PORTION_ROWS + 10)
    first = desk.execute(park("a", QUERY_TASKS))
    assert first == (
        {"unknown": PARK_PORTION_ROWS},
        (0, known + PARK_PORTION_ROWS),
        known + PARK_PORTION_ROWS + 10,
    )
    rest = desk.execute(park("a", QUERY_TASKS))
    assert (rest.jobs_by_task, rest.last_place) == ({"unknown": 10}, None), "the end of the queue"
    assert desk.execute(park("a", QUERY_TASKS))[:2] == ({}, None)
    assert [job.id for job in desk.take(5)] == [known]


def test_a_job_that_another_session_holds_is_left_to_it(dsn: str, db: Db, desk: Desk) -> None:
    crowd(db, 3)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM pgworkers.job WHERE id = 2 FOR UPDATE")
        assert desk.execute(park("a", QUERY_TASKS)).jobs_by_task == {"unknown": 2}


def test_a_host_that_knows_the_task_claims_what_was_parked_in_the_order_of_all(db: Db, desk: Desk) -> None:
    crowd(db, 3)
    assert park_all(desk) == 3
    high = desk.put("unknown", priority=1)
    low = desk.put("unknown")
    assert [job.id for job in desk.take(4, tasks=("t", "unknown"))] == [high, 1, 2, 3]
    assert [job.id for job in desk.take(4, tasks=("t", "unknown"))] == [low], "no limit holds them"


def test_the_limit_of_a_task_holds_for_what_was_parked(db: Db, desk: Desk) -> None:
    crowd(db, 5)
    park_all(desk)
    desk.execute(queues.declare_tasks([TaskSpec("unknown", "a", concurrency=2)]))
    assert len(desk.take(5, tasks=("unknown",))) == 2
    assert desk.take(5, tasks=("unknown",)) == []


def test_parked_jobs_are_still_told_of(db: Db, desk: Desk) -> None:
    crowd(db, 5)
    park_all(desk)
    crowd(db, 2)
    desk.put(concurrency_key="x")
    (found,) = desk.execute(unknown_tasks(["a"]))
    assert (found.queue, found.task, found.jobs) == ("a", "unknown", 7)
