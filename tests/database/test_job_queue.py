"""Queues and tasks as rows: a deploy adds, an operator tunes, neither undoes the other."""

from __future__ import annotations

from support.database_host import DatabaseHost

from pgworkers.job import queues
from pgworkers.job.queues import ThrottleAnswer
from pgworkers.specs import TaskSpec


def test_a_deploy_makes_missing_rows_and_never_overwrites_what_was_tuned(host: DatabaseHost) -> None:
    assert host.execute(queues.declare_queues(["b", "a", "b"])) == ["a", "b"]
    host.execute(queues.pause_queue("a"))
    host.conn.execute("UPDATE pgworkers.queue SET workers = 3 WHERE name = 'a'")
    assert host.execute(queues.declare_queues(["a", "c"])) == ["c"]
    a, b = host.execute(queues.queue_configs(["b", "a", "nope"]))
    assert (a.name, a.is_paused, a.workers, a.throttled_seconds) == ("a", True, 3, 0.0)
    assert (b.name, b.is_paused, b.workers) == ("b", False, None)


def test_pause_and_resume_notify_hosts_and_refuse_an_unknown_queue(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"]))
    host.listen()
    assert host.execute(queues.pause_queue("a"))
    assert host.execute(queues.resume_queue("a"))
    assert host.notifications() == [("pgworkers", "queue:a"), ("pgworkers", "queue:a")]
    assert not host.execute(queues.pause_queue("nope"))
    assert host.execute(queues.throttle_queue("nope", 1.0)) is ThrottleAnswer.MISSING


def test_a_longer_cool_down_is_never_shortened(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"]))
    host.execute(queues.throttle_queue("a", 3600.0))
    host.execute(queues.throttle_queue("a", 1.0))
    (config,) = host.execute(queues.queue_configs(["a"]))
    assert 3500 < config.throttled_seconds <= 3600


def test_tasks_are_written_when_they_changed(host: DatabaseHost) -> None:
    tasks = [TaskSpec("b", "q"), TaskSpec("a", "q", priority=1)]
    assert host.execute(queues.declare_tasks(tasks)) == ["a", "b"]
    assert host.execute(queues.declare_tasks(tasks)) == []
    assert host.execute(queues.declare_tasks([TaskSpec("a", "q", priority=2)])) == ["a"]
    assert host.execute(queues.declare_tasks([])) == []
