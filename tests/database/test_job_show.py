"""Show: what people and handles see."""

from __future__ import annotations

from dataclasses import fields

from support.desk import Desk

from pgworkers.job import cancel, queue, show
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
    everything = [found.id for found in desk.ask(show.find(Filter()))]
    assert everything == ids[::-1]
    cases = {
        Filter(states=(State.DEAD, State.CANCELLED)): [ids[1], ids[0]],
        Filter(queues=("b",)): [ids[3]],
        Filter(tasks=("u",), queues=("a",)): [ids[4]],
        Filter(tasks=("t", "u")): everything,
        Filter(queues=("b", "nobody's")): [ids[3]],
        Filter(ids=(ids[0], ids[5], 999)): [ids[5], ids[0]],
        Filter(ids=()): [],
        Filter(before=ids[2]): [ids[1], ids[0]],
        Filter(states=(State.SCHEDULED,)): [ids[5]],
    }
    for where, expected in cases.items():
        assert [found.id for found in desk.ask(show.find(where))] == expected
        assert desk.ask(show.ids(where)) == expected
        assert desk.ask(show.count(where)) == len(expected)
    page = desk.ask(show.find(Filter(limit=4)))
    rest = desk.ask(show.find(Filter(limit=4, before=page[-1].id)))
    assert [found.id for found in page + rest] == everything


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
        return desk.ask(show.unfinished(["a"], ["t"]))

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


def test_a_burst_does_not_wait_for_what_only_an_operator_can_set_going(desk: Desk) -> None:
    def awaited() -> int:
        return desk.ask(show.unfinished(["a", "b"], ["t", "u"]))

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
