"""Show: what people and handles see."""

from __future__ import annotations

from dataclasses import fields

import pytest
from psycopg.types.json import Jsonb
from support.database_host import DatabaseHost

from pgworkers.job import burst, cancel, claim, queries, queues
from pgworkers.job.model import JobState
from pgworkers.job.queries import JobFilter, JobView
from pgworkers.limits import concurrency


def test_the_view_is_shown_with_all_its_columns(host: DatabaseHost) -> None:
    cursor = host.conn.execute("SELECT * FROM pgworkers.jobs LIMIT 0")
    assert {column.name for column in cursor.description or []} == {field.name for field in fields(JobView)}


def test_no_such_job(host: DatabaseHost) -> None:
    assert host.execute(queries.get_job(1)) is None
    assert host.execute(queries.job_attempts(1)) == []


def test_jobs_are_found_by_what_they_are_the_newest_first_page_by_page(host: DatabaseHost) -> None:
    ids = [host.enqueue() for _ in range(3)] + [
        host.enqueue(queue="b"),
        host.enqueue(task="u"),
        host.enqueue(delay=60.0),
    ]
    host.execute(cancel.cancel(ids[0]))
    (job,) = host.claim()
    host.finish_job(job, JobState.DEAD, error="x")
    everything = [found.id for found in queries.find_jobs(host.execute, JobFilter()).jobs]
    assert everything == ids[::-1]
    cases = {
        JobFilter(states=(JobState.DEAD, JobState.CANCELLED)): [ids[1], ids[0]],
        JobFilter(queues=("b",)): [ids[3]],
        JobFilter(tasks=("u",), queues=("a",)): [ids[4]],
        JobFilter(tasks=("t", "u")): everything,
        JobFilter(queues=("b", "nobody's")): [ids[3]],
        JobFilter(before_id=ids[2]): [ids[1], ids[0]],
        JobFilter(states=(JobState.SCHEDULED,)): [ids[5]],
    }
    for where, expected in cases.items():
        assert [found.id for found in queries.find_jobs(host.execute, where).jobs] == expected
        assert queries.count_jobs(host.execute, where) == queries.JobCount(len(expected), is_complete=True)
    page = queries.find_jobs(host.execute, JobFilter(limit=4))
    rest = queries.find_jobs(host.execute, JobFilter(limit=4, before_id=page.before_id))
    assert [found.id for found in page.jobs + rest.jobs] == everything
    assert [found.id for found in host.execute(queries.jobs_by_id([ids[0], ids[5], 999]))] == [ids[5], ids[0]]
    assert host.execute(queries.jobs_by_id([])) == []


def test_a_search_goes_on_in_steps_and_says_where_it_ended(
    host: DatabaseHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "FIRST_PAGE_ROWS", 2)
    monkeypatch.setattr(queries, "LARGEST_PAGE_ROWS", 8)
    rare = host.enqueue(task="rare")
    ended = [host.enqueue_and_claim() for _ in range(20)]
    for job in ended:
        host.finish_job(job, JobState.SUCCEEDED)
    others = [host.enqueue() for _ in range(20)]
    steps = list(queries.search_pages(host.execute, JobFilter(tasks=("rare",))))
    assert max(step.rows_read for step in steps) == 8
    assert [step.ids for step in steps] == [[]] * (len(steps) - 1) + [[rare]]
    assert sum(step.rows_read for step in steps) == 41
    assert [job.id for job in queries.find_jobs(host.execute, JobFilter(tasks=("rare",))).jobs] == [rare]
    cut = queries.find_jobs(host.execute, JobFilter(tasks=("rare",)), max_looked=10)
    assert (cut.jobs, cut.before_id) == ([], others[10])
    rest = queries.find_jobs(host.execute, JobFilter(tasks=("rare",), before_id=cut.before_id))
    assert ([job.id for job in rest.jobs], rest.before_id) == ([rare], None)
    assert queries.count_jobs(host.execute, JobFilter(tasks=("t",)), max_looked=10) == queries.JobCount(
        10, is_complete=False
    )
    monkeypatch.setattr(queries, "MAX_COUNTED_JOBS", 5)
    assert queries.count_jobs(host.execute, JobFilter()) == queries.JobCount(5, is_complete=False)
    assert queries.count_jobs(host.execute, JobFilter(tasks=("rare",))) == queries.JobCount(
        1, is_complete=True
    )


def test_a_search_for_held_jobs_separates_claimed_from_running(host: DatabaseHost) -> None:
    host.enqueue()
    held = [host.enqueue_and_claim() for _ in range(3)]
    workers = [{"queue": "a", "slot": 0, "pid": 1, "state": "busy", "job_id": held[0].id}]
    host.conn.execute("UPDATE pgworkers.host SET workers = %s", [Jsonb(workers)])
    for states, expected in (
        ((JobState.RUNNING,), [held[0].id]),
        ((JobState.CLAIMED,), [held[2].id, held[1].id]),
        ((JobState.CLAIMED, JobState.RUNNING), [held[2].id, held[1].id, held[0].id]),
    ):
        found = queries.find_jobs(host.execute, JobFilter(states=states)).jobs
        assert [job.id for job in found] == expected
        assert {job.state for job in found} == set(states)


def test_a_search_says_if_hosts_hold_more_jobs_than_it_looked_at(
    host: DatabaseHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = queries.JobFilter(states=[JobState.CLAIMED, JobState.RUNNING])
    for _ in range(3):
        host.enqueue_and_claim()
    assert not queries.find_jobs(host.execute, held).is_partial
    assert queries.count_jobs(host.execute, held) == queries.JobCount(3, is_complete=True)
    monkeypatch.setattr(queries, "MAX_HELD_JOBS", 2)
    found = queries.find_jobs(host.execute, held)
    assert (len(found.jobs), found.is_partial) == (2, True)
    assert queries.count_jobs(host.execute, held) == queries.JobCount(2, is_complete=False)
    assert not queries.find_jobs(host.execute, queries.JobFilter()).is_partial


def test_counts_of_queues_end_at_their_cap(host: DatabaseHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_COUNTED_JOBS", 2)
    for _ in range(3):
        host.enqueue()
        host.enqueue(delay=60.0)
    host.enqueue(queue="b")
    host.enqueue(queue="keyed", concurrency_key="k")
    a, b, keyed = host.execute(queries.list_queues())
    assert (a.ready, a.scheduled, sorted(a.capped)) == (2, 2, ["ready", "scheduled"])
    assert (b.ready, list(b.capped)) == (1, ["scheduled"]), "what is scheduled is counted over all queues"
    assert (keyed.name, keyed.ready) == ("keyed", 1)


def test_queues_with_their_counts(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a", "idle"]))
    host.execute(queues.pause_queue("idle"))
    dead = host.enqueue_and_claim()
    host.finish_job(dead, JobState.DEAD, error="x")
    host.enqueue_and_claim()
    host.enqueue()
    host.enqueue(delay=60.0)
    host.enqueue(queue="undeclared")
    a, idle, undeclared = host.execute(queries.list_queues())
    assert (a.name, a.paused, a.ready, a.scheduled, a.running, a.dead) == ("a", False, 1, 1, 1, 1)
    assert a.oldest_ready is not None
    assert a.oldest_ready >= 0
    assert (idle.name, idle.paused, idle.ready, idle.oldest_ready) == ("idle", True, 0, None)
    assert (undeclared.name, undeclared.ready) == ("undeclared", 1)


def test_a_burst_waits_for_what_is_ready_runs_or_is_to_be_retried(host: DatabaseHost) -> None:
    def left() -> int:
        return host.execute(burst.unfinished_work(["a"], ["t"])).jobs

    assert left() == 0
    job = host.enqueue_and_claim()
    assert left() == 1
    host.retry_job(job)
    assert left() == 1
    host.enqueue(delay=3600.0)
    host.enqueue(queue="b")
    host.enqueue(task="of_another_app")
    assert left() == 1
    host.conn.execute("UPDATE pgworkers.job SET run_at = now() WHERE attempt = 0 AND state = 'scheduled'")
    assert left() == 2, "due, and not yet promoted"


def test_a_burst_finds_one_retry_behind_many_jobs_for_later_in_portions(
    host: DatabaseHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burst, "UNFINISHED_SCAN_ROWS", 3)
    for _ in range(7):
        host.enqueue(delay=60.0)
    found = host.execute(burst.unfinished_work(["a"], ["t"]))
    steps = 1
    while found.next_place is not None:
        found = host.execute(burst.unfinished_work(["a"], ["t"], found.next_place))
        steps += 1
    assert (steps, found.is_finished) == (3, True)
    host.conn.execute("UPDATE pgworkers.job SET attempt = 1 WHERE id = (SELECT max(id) FROM pgworkers.job)")
    found = host.execute(burst.unfinished_work(["a"], ["t"]))
    while found.next_place is not None and not found.jobs:
        assert not found.is_finished
        found = host.execute(burst.unfinished_work(["a"], ["t"], found.next_place))
    assert found.jobs == 1


def test_a_burst_does_not_end_before_it_has_passed_all_jobs_of_other_tasks(
    host: DatabaseHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burst, "UNFINISHED_SCAN_ROWS", 3)
    for _ in range(4):
        host.enqueue(task="of_another_app")
    host.enqueue()
    found = host.execute(burst.unfinished_work(["a"], ["t"]))
    assert (found.jobs, found.crowded_queues, found.is_finished) == (0, ["a"], False)
    host.execute(claim.park("a", ["t"], burst.UNFINISHED_SCAN_ROWS))
    assert host.execute(burst.unfinished_work(["a"], ["t"])).jobs == 1


def test_a_burst_passes_by_keys_without_slots(host: DatabaseHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst, "UNFINISHED_SCAN_ROWS", 3)
    for key in ("x", "y"):
        host.execute(concurrency.set_limit("key", key, 0))
        for _ in range(4):
            host.enqueue(concurrency_key=key)
    assert host.execute(burst.unfinished_work(["a"], ["t"])).is_finished
    host.enqueue(concurrency_key="open")
    assert host.execute(burst.unfinished_work(["a"], ["t"])).jobs == 1


def test_a_burst_does_not_wait_for_what_only_an_operator_can_set_going(host: DatabaseHost) -> None:
    def awaited() -> int:
        return host.execute(burst.unfinished_work(["a", "b"], ["t", "u"])).jobs

    def left() -> list[tuple[str, str, str, int]]:
        return [
            (o.queue, o.task, o.reason, o.count)
            for o in host.execute(burst.jobs_left_behind(["a", "b"], ["t", "u"]))
        ]

    assert (awaited(), left()) == (0, [])
    host.execute(queues.declare_queues(["a", "b"], {}))
    host.enqueue()
    host.enqueue()
    retried = host.enqueue_and_claim(task="u")
    host.retry_job(retried)
    assert awaited() == 3
    host.execute(queues.pause_queue("a"))
    assert awaited() == 0
    host.enqueue(queue="b", task="u")
    host.enqueue(queue="b", task="u", delay=7200.0)
    host.enqueue(queue="b", task="nobodys")
    assert awaited() == 1
    host.execute(concurrency.set_limit("task", "u", 0))
    assert awaited() == 0
    assert left() == [
        ("a", "t", "paused", 2),
        ("a", "u", "paused", 1),
        ("b", "nobodys", "unknown", 1),
        ("b", "u", "limit", 2),
    ]
    host.execute(concurrency.set_limit("task", "u", None))
    assert ("b", "u", "later", 1) in left()
    host.execute(queues.scale_queue("b", workers=0))
    assert awaited() == 0
    assert ("b", "u", "no workers", 2) in left()
    host.execute(queues.resume_queue("a"))
    assert awaited() == 3
