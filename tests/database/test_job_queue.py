"""Queues and tasks as rows: a deploy adds, an operator tunes, neither undoes the other."""

from __future__ import annotations

from support.desk import Desk

from pgworkers.job import queue
from pgworkers.specs import TaskSpec


def test_a_deploy_makes_missing_rows_and_never_overwrites_what_was_tuned(desk: Desk) -> None:
    assert desk.ask(queue.declare(["b", "a", "b"])) == ["a", "b"]
    desk.ask(queue.pause("a"))
    desk.conn.execute("UPDATE pgworkers.queue SET workers = 3 WHERE name = 'a'")
    assert desk.ask(queue.declare(["a", "c"])) == ["c"]
    a, b = desk.ask(queue.configs(["b", "a", "nope"]))
    assert (a.name, a.paused, a.workers, a.throttled) == ("a", True, 3, 0.0)
    assert (b.name, b.paused, b.workers) == ("b", False, None)


def test_pausing_and_resuming_tells_the_hosts_and_knows_no_unknown_queue(desk: Desk) -> None:
    desk.ask(queue.declare(["a"]))
    desk.listen()
    assert desk.ask(queue.pause("a"))
    assert desk.ask(queue.resume("a"))
    assert desk.notices() == [("pgworkers", "queue:a"), ("pgworkers", "queue:a")]
    assert not desk.ask(queue.pause("nope"))
    assert not desk.ask(queue.throttle("nope", 1.0))


def test_a_longer_cool_down_is_never_shortened(desk: Desk) -> None:
    desk.ask(queue.declare(["a"]))
    desk.ask(queue.throttle("a", 3600.0))
    desk.ask(queue.throttle("a", 1.0))
    (config,) = desk.ask(queue.configs(["a"]))
    assert 3500 < config.throttled <= 3600


def test_tasks_are_written_when_they_changed(desk: Desk) -> None:
    tasks = [TaskSpec("b", "q"), TaskSpec("a", "q", priority=1)]
    assert desk.ask(queue.declare_tasks(tasks)) == ["a", "b"]
    assert desk.ask(queue.declare_tasks(tasks)) == []
    assert desk.ask(queue.declare_tasks([TaskSpec("a", "q", priority=2)])) == ["a"]
    assert desk.ask(queue.declare_tasks([])) == []
