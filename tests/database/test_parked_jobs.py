"""Jobs of tasks that a host does not know: parked in portions, passed in one probe, claimed by a host that knows them."""

from __future__ import annotations

import psycopg
import pytest
from support.database_host import DatabaseHost
from test_limits_pages_read import Db, db, host, most_pages

from pgworkers.job import claim, queues
from pgworkers.job.claim import PARK_PORTION_ROWS, park
from pgworkers.job.gauges import unknown_tasks
from pgworkers.specs import TaskSpec

__all__ = ["db", "host"]
QUERY_TASKS = ["t"]


def crowd(db: Db, jobs: int, task: str = "'unknown'") -> None:
    db.execute(
        f"INSERT INTO pgworkers.job (queue, task) SELECT 'a', {task} FROM generate_series(1, %s) n", [jobs]
    )


def park_all(host: DatabaseHost) -> int:
    """All portions; how many jobs were moved."""
    moved = 0
    while True:
        found = host.execute(park("a", QUERY_TASKS))
        moved += sum(found.jobs_by_task.values())
        if found.last_place is None or not found.jobs_by_task:
            return moved


@pytest.mark.parametrize("task", ["'unknown'", "'unknown ' || n"], ids=["one task", "many tasks"])
def test_a_claim_passes_unknown_tasks_in_one_probe(db: Db, host: DatabaseHost, task: str) -> None:
    query = claim.claim(host.id, [claim.QueueCapacity("a", 3)], ["s", "t", "zz"])
    host.enqueue()
    before = most_pages(db, query)
    crowd(db, 5 * PARK_PORTION_ROWS, task)
    late = host.enqueue()
    crowded = most_pages(db, query)
    assert crowded > before + 100, "the twin: without parking it walks over all of them"
    assert park_all(host) == 5 * PARK_PORTION_ROWS
    db.execute("VACUUM ANALYZE pgworkers.job")
    assert most_pages(db, query) < before + 60
    assert [job.id for job in host.claim(3)][1:] == [late]


def test_one_portion_looks_at_a_bounded_number_of_jobs_and_says_where_it_ended(
    db: Db, host: DatabaseHost
) -> None:
    known = host.enqueue(priority=-1)
    crowd(db, PARK_PORTION_ROWS + 10)
    first = host.execute(park("a", QUERY_TASKS))
    assert first == (
        {"unknown": PARK_PORTION_ROWS},
        (0, known + PARK_PORTION_ROWS),
        known + PARK_PORTION_ROWS + 10,
    )
    rest = host.execute(park("a", QUERY_TASKS))
    assert (rest.jobs_by_task, rest.last_place) == ({"unknown": 10}, None), "the end of the queue"
    assert host.execute(park("a", QUERY_TASKS))[:2] == ({}, None)
    assert [job.id for job in host.claim(5)] == [known]


def test_a_job_that_another_session_holds_is_left_to_it(dsn: str, db: Db, host: DatabaseHost) -> None:
    crowd(db, 3)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM pgworkers.job WHERE id = 2 FOR UPDATE")
        assert host.execute(park("a", QUERY_TASKS)).jobs_by_task == {"unknown": 2}


def test_a_host_that_knows_the_task_claims_what_was_parked_in_the_order_of_all(
    db: Db, host: DatabaseHost
) -> None:
    crowd(db, 3)
    assert park_all(host) == 3
    high = host.enqueue("unknown", priority=1)
    low = host.enqueue("unknown")
    assert [job.id for job in host.claim(4, tasks=("t", "unknown"))] == [high, 1, 2, 3]
    assert [job.id for job in host.claim(4, tasks=("t", "unknown"))] == [low], "no limit holds them"


def test_the_limit_of_a_task_holds_for_what_was_parked(db: Db, host: DatabaseHost) -> None:
    crowd(db, 5)
    park_all(host)
    host.execute(queues.declare_tasks([TaskSpec("unknown", "a", concurrency=2)]))
    assert len(host.claim(5, tasks=("unknown",))) == 2
    assert host.claim(5, tasks=("unknown",)) == []


def test_parked_jobs_are_still_notified(db: Db, host: DatabaseHost) -> None:
    crowd(db, 5)
    park_all(host)
    crowd(db, 2)
    host.enqueue(concurrency_key="x")
    (found,) = host.execute(unknown_tasks(["a"]))
    assert (found.queue, found.task, found.jobs) == ("a", "unknown", 7)
