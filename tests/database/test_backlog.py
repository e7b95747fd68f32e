"""`pgworkers.backlog()`: what autoscalers ask."""

from __future__ import annotations

from typing import Any

import psycopg

Db = psycopg.Connection[Any]


def backlog(db: Db, *args: Any) -> int:
    marks = ", ".join(["%s"] * len(args))
    row = db.execute(f"SELECT pgworkers.backlog({marks})", args).fetchone()
    assert row is not None
    return int(row[0])


def test_ready_and_running_jobs_count(db: Db) -> None:
    assert (backlog(db), backlog(db, "api")) == (0, 0)
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('api'), ('other')")
    db.execute("SELECT pgworkers.enqueue('t', queue => 'api') FROM generate_series(1, 5)")
    db.execute(
        "SELECT pgworkers.enqueue('t', queue => 'api', concurrency_key => 'k') FROM generate_series(1, 2)"
    )
    db.execute("SELECT pgworkers.enqueue('t', queue => 'api', delay => '1 h')")
    db.execute("SELECT pgworkers.enqueue('t', queue => 'other')")
    assert (backlog(db, "api"), backlog(db, "other"), backlog(db)) == (7, 1, 8)
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid()"
        " WHERE id = (SELECT min(id) FROM pgworkers.job)"
    )
    assert backlog(db, "api") == 7
    assert backlog(db, "api", 3) == 3


def test_a_paused_queue_needs_only_its_running_jobs(db: Db) -> None:
    db.execute("INSERT INTO pgworkers.queue (name, paused) VALUES ('api', true)")
    db.execute("SELECT pgworkers.enqueue('t', queue => 'api') FROM generate_series(1, 3)")
    assert backlog(db, "api") == 0
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid() WHERE id = (SELECT min(id) FROM pgworkers.job)"
    )
    assert backlog(db, "api") == 1
    db.execute("UPDATE pgworkers.queue SET paused = false, throttled_until = now() + interval '1 h'")
    assert backlog(db, "api") == 1
    db.execute("UPDATE pgworkers.queue SET throttled_until = now() - interval '1 s'")
    assert backlog(db, "api") == 3


def test_an_undeclared_queue_is_counted_by_its_name(db: Db) -> None:
    db.execute("SELECT pgworkers.enqueue('t', queue => 'new')")
    assert backlog(db, "new") == 1
