"""Show: what people and handles see."""

from __future__ import annotations

from dataclasses import fields

import pytest
from psycopg.types.json import Jsonb
from support.desk import Desk

from pgworkers.job import cancel, park, queue, show
from pgworkers.job.show import Filter, JobView
from pgworkers.job.state import State


def test_the_view_is_shown_with_all_its_columns(desk: Desk) -> None:
    cursor = desk.conn.execute("SELECT * FROM pgworkers.jobs LIMIT 0")
    assert {column.name for column in cursor.description or []} == {field.name for field in fields(JobView)}


def test_no_such_job(desk: Desk) -> None:
    assert desk.ask(show.get(1)) is None
    assert desk.ask(show.attempts(1)) == []


def test_jobs_are_found_by_what_they_are_the_newest_first_page_by_page(desk: Desk) -> None:
    ids = [desk.put() for _ in range(3)] + [desk.put(queue="b"), desk.put(task="u"), desk.put(delay=60.0)]
    desk.ask(cancel.cancel(ids[0]))
    (job,) = desk.take()
    desk.end(job, State.DEAD, error="x")
    everything = [found.id for found in show.find(desk.ask, Filter()).jobs]
    assert everything == ids[::-1]
    cases = {
        Filter(states=(State.DEAD, State.CANCELLED)): [ids[1], ids[0]],
        Filter(queues=("b",)): [ids[3]],
        Filter(tasks=("u",), queues=("a",)): [ids[4]],
        Filter(tasks=("t", "u")): everything,
        Filter(queues=("b", "nobody's")): [ids[3]],
        Filter(before=ids[2]): [ids[1], ids[0]],
        Filter(states=(State.SCHEDULED,)): [ids[5]],
    }
    for where, expected in cases.items():
        assert [found.id for found in show.find(desk.ask, where).jobs] == expected
        assert show.count(desk.ask, where) == show.Count(len(expected), complete=True)
    page = show.find(desk.ask, Filter(limit=4))
    rest = show.find(desk.ask, Filter(limit=4, before=page.before))
    assert [found.id for found in page.jobs + rest.jobs] == everything
    assert [found.id for found in desk.ask(show.many([ids[0], ids[5], 999]))] == [ids[5], ids[0]]
    assert desk.ask(show.many([])) == []


def test_a_search_goes_on_in_steps_and_says_where_it_ended(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "FIRST_LOOK", 2)
    monkeypatch.setattr(show, "LARGEST_LOOK", 8)
    rare = desk.put(task="rare")
    ended = [desk.run_one() for _ in range(20)]
    for job in ended:
        desk.end(job, State.SUCCEEDED)
    others = [desk.put() for _ in range(20)]
    steps = list(show.pages(desk.ask, Filter(tasks=("rare",))))
    assert max(step.looked for step in steps) == 8
    assert [step.ids for step in steps] == [[]] * (len(steps) - 1) + [[rare]]
    assert sum(step.looked for step in steps) == 41
    assert [job.id for job in show.find(desk.ask, Filter(tasks=("rare",))).jobs] == [rare]
    cut = show.find(desk.ask, Filter(tasks=("rare",)), max_looked=10)
    assert (cut.jobs, cut.before) == ([], others[10])
    rest = show.find(desk.ask, Filter(tasks=("rare",), before=cut.before))
    assert ([job.id for job in rest.jobs], rest.before) == ([rare], None)
    assert show.count(desk.ask, Filter(tasks=("t",)), max_looked=10) == show.Count(10, complete=False)
    monkeypatch.setattr(show, "MAX_COUNT", 5)
    assert show.count(desk.ask, Filter()) == show.Count(5, complete=False)
    assert show.count(desk.ask, Filter(tasks=("rare",))) == show.Count(1, complete=True)


def test_a_search_for_what_hosts_hold_tells_claimed_from_running(desk: Desk) -> None:
    desk.put()
    held = [desk.run_one() for _ in range(3)]
    workers = [{"queue": "a", "slot": 0, "pid": 1, "state": "busy", "job_id": held[0].id}]
    desk.conn.execute("UPDATE pgworkers.host SET workers = %s", [Jsonb(workers)])
    for states, expected in (
        ((State.RUNNING,), [held[0].id]),
        ((State.CLAIMED,), [held[2].id, held[1].id]),
        ((State.CLAIMED, State.RUNNING), [held[2].id, held[1].id, held[0].id]),
    ):
        found = show.find(desk.ask, Filter(states=states)).jobs
        assert [job.id for job in found] == expected
        assert {job.state for job in found} == set(states)


def test_a_search_says_if_hosts_hold_more_jobs_than_it_looked_at(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = show.Filter(states=[State.CLAIMED, State.RUNNING])
    for _ in range(3):
        desk.run_one()
    assert not show.find(desk.ask, held).is_partial
    assert show.count(desk.ask, held) == show.Count(3, complete=True)
    monkeypatch.setattr(show, "MAX_HELD", 2)
    found = show.find(desk.ask, held)
    assert (len(found.jobs), found.is_partial) == (2, True)
    assert show.count(desk.ask, held) == show.Count(2, complete=False)
    assert not show.find(desk.ask, show.Filter()).is_partial


def test_counts_of_queues_end_at_their_cap(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "MAX_COUNT", 2)
    for _ in range(3):
        desk.put()
        desk.put(delay=60.0)
    desk.put(queue="b")
    desk.put(queue="keyed", concurrency_key="k")
    a, b, keyed = desk.ask(show.queues())
    assert (a.ready, a.scheduled, sorted(a.capped)) == (2, 2, ["ready", "scheduled"])
    assert (b.ready, list(b.capped)) == (1, ["scheduled"]), "what is scheduled is counted over all queues"
    assert (keyed.name, keyed.ready) == ("keyed", 1)


def test_queues_with_their_counts(desk: Desk) -> None:
    desk.ask(queue.declare(["a", "idle"]))
    desk.ask(queue.pause("idle"))
    dead = desk.run_one()
    desk.end(dead, State.DEAD, error="x")
    desk.run_one()
    desk.put()
    desk.put(delay=60.0)
    desk.put(queue="undeclared")
    a, idle, undeclared = desk.ask(show.queues())
    assert (a.name, a.paused, a.ready, a.scheduled, a.running, a.dead) == ("a", False, 1, 1, 1, 1)
    assert a.oldest_ready is not None
    assert a.oldest_ready >= 0
    assert (idle.name, idle.paused, idle.ready, idle.oldest_ready) == ("idle", True, 0, None)
    assert (undeclared.name, undeclared.ready) == ("undeclared", 1)


def test_a_burst_waits_for_what_is_ready_runs_or_is_to_be_retried(desk: Desk) -> None:
    def left() -> int:
        return desk.ask(show.unfinished(["a"], ["t"])).jobs

    assert left() == 0
    job = desk.run_one()
    assert left() == 1
    desk.again(job)
    assert left() == 1
    desk.put(delay=3600.0)
    desk.put(queue="b")
    desk.put(task="of_another_app")
    assert left() == 1
    desk.conn.execute("UPDATE pgworkers.job SET run_at = now() WHERE attempt = 0 AND state = 'scheduled'")
    assert left() == 2, "due, and not yet promoted"


def test_a_burst_finds_one_retry_behind_many_jobs_for_later_in_portions(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "UNFINISHED_LOOK", 3)
    for _ in range(7):
        desk.put(delay=60.0)
    found = desk.ask(show.unfinished(["a"], ["t"]))
    steps = 1
    while found.next is not None:
        found = desk.ask(show.unfinished(["a"], ["t"], found.next))
        steps += 1
    assert (steps, found.is_nothing) == (3, True)
    desk.conn.execute("UPDATE pgworkers.job SET attempt = 1 WHERE id = (SELECT max(id) FROM pgworkers.job)")
    found = desk.ask(show.unfinished(["a"], ["t"]))
    while found.next is not None and not found.jobs:
        assert not found.is_nothing
        found = desk.ask(show.unfinished(["a"], ["t"], found.next))
    assert found.jobs == 1


def test_a_burst_does_not_end_before_it_has_passed_all_jobs_of_other_tasks(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "UNFINISHED_LOOK", 3)
    for _ in range(4):
        desk.put(task="of_another_app")
    desk.put()
    found = desk.ask(show.unfinished(["a"], ["t"]))
    assert (found.jobs, found.crowded, found.is_nothing) == (0, ["a"], False)
    desk.ask(park.park("a", ["t"], show.UNFINISHED_LOOK))
    assert desk.ask(show.unfinished(["a"], ["t"])).jobs == 1


def test_a_burst_passes_by_keys_without_slots(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "UNFINISHED_LOOK", 3)
    for key in ("x", "y"):
        desk.ask(queue.limit("key", key, 0))
        for _ in range(4):
            desk.put(concurrency_key=key)
    assert desk.ask(show.unfinished(["a"], ["t"])).is_nothing
    desk.put(concurrency_key="open")
    assert desk.ask(show.unfinished(["a"], ["t"])).jobs == 1


def test_a_burst_does_not_wait_for_what_only_an_operator_can_set_going(desk: Desk) -> None:
    def awaited() -> int:
        return desk.ask(show.unfinished(["a", "b"], ["t", "u"])).jobs

    def left() -> list[tuple[str, str, str, int]]:
        return [(o.queue, o.task, o.reason, o.count) for o in desk.ask(show.left(["a", "b"], ["t", "u"]))]

    assert (awaited(), left()) == (0, [])
    desk.ask(queue.declare(["a", "b"], {}))
    desk.put()
    desk.put()
    retried = desk.run_one(task="u")
    desk.again(retried)
    assert awaited() == 3
    desk.ask(queue.pause("a"))
    assert awaited() == 0
    desk.put(queue="b", task="u")
    desk.put(queue="b", task="u", delay=7200.0)
    desk.put(queue="b", task="nobodys")
    assert awaited() == 1
    desk.ask(queue.limit("task", "u", 0))
    assert awaited() == 0
    assert left() == [
        ("a", "t", "paused", 2),
        ("a", "u", "paused", 1),
        ("b", "nobodys", "unknown", 1),
        ("b", "u", "limit", 2),
    ]
    desk.ask(queue.limit("task", "u", None))
    assert ("b", "u", "later", 1) in left()
    desk.ask(queue.scale("b", workers=0))
    assert awaited() == 0
    assert ("b", "u", "no workers", 2) in left()
    desk.ask(queue.resume("a"))
    assert awaited() == 3
