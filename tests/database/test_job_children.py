"""Jobs that begin to exist with the end of another: in the statement that writes it, once, or never."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from support.database_host import DatabaseHost

from pgworkers.job import model
from pgworkers.job.finish import JobFinish
from pgworkers.job.model import JobState, NewJob, Verdict

TWO = model.encode_children(
    [NewJob("child", '{"n": 1}', queue="b"), NewJob("child", '{"n": 2}', queue="b")]
).decode()


def children(host: DatabaseHost) -> list[Any]:
    rows = host.conn.execute(
        "SELECT args -> 'n' FROM pgworkers.jobs WHERE task = 'child' ORDER BY id"
    ).fetchall()
    return [row[0] for row in rows]


def test_children_are_enqueued_with_the_result_of_their_parent_and_notified(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.listen()
    assert children(host) == []
    assert host.finish_job(job, children=TWO) == "written"
    assert children(host) == [1, 2]
    assert ("pgworkers", "ready:b") in host.notifications()


def test_an_end_that_is_sent_again_has_no_second_children(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    assert host.finish_job(job, children=TWO) == "written"
    assert host.finish_job(job, children=TWO) == "already"
    assert children(host) == [1, 2]


def test_an_end_that_is_refused_has_no_children_and_its_neighbour_has_its_own(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    stale = host.enqueue_and_claim()
    assert host.retry_job(stale, delay_seconds=0) == "written"
    (_fresh,) = other.claim()
    well = host.enqueue_and_claim()
    three = model.encode_children([NewJob("child", '{"n": 3}', queue="b")]).decode()
    ends = [
        JobFinish(
            **job.fence._asdict(),
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
            children=text,
        )
        for job, text in ((stale, TWO), (well, three))
    ]
    assert host.finish(ends) == {stale.fence: "lost", well.fence: "written"}
    assert children(host) == [3]


def test_a_child_is_what_the_same_enqueue_would_have_made(host: DatabaseHost) -> None:
    columns = (
        "state, priority, queue, task, args, max_attempts, max_crashes, timeout, memory, concurrency_key, meta, run_at, "
        "date_trunc('hour', expires_at), date_trunc('hour', deadline_at)"
    )
    at = datetime(2099, 2, 3, 4, 5, 6, tzinfo=UTC)
    much = NewJob(
        "much", '{"a": [1.5, "\\u00e9 \\" \\\\"]}', "b", 7, at, None, None, "return", 4, 2, 12.5, 1 << 21, 3600.0, 60.0,
        "key", '{"why": "so"}',
    )  # fmt: skip
    for new in (NewJob("little"), much):
        host.finish_job(host.enqueue_and_claim(), children=model.encode_children([new]).decode())
        by_end = host.conn.execute(
            f"SELECT {columns} FROM pgworkers.job WHERE task = %s", [new.task]
        ).fetchall()
        host.conn.execute("DELETE FROM pgworkers.job WHERE task = %s", [new.task])
        host.enqueue(
            new.task, new.args_json, **{name: getattr(new, name) for name in NewJob.__struct_fields__[2:]}
        )
        by_call = host.conn.execute(
            f"SELECT {columns} FROM pgworkers.job WHERE task = %s", [new.task]
        ).fetchall()
        moments = slice(0, 11) if new.task == "little" else slice(None)
        assert len(by_end) == 1
        assert by_end[0][moments] == by_call[0][moments]
    later = NewJob("later", delay=3600.0)
    host.finish_job(host.enqueue_and_claim(), children=model.encode_children([later]).decode())
    due = "SELECT state::text, run_at - now() BETWEEN '59 minutes' AND '1 hour' FROM pgworkers.job WHERE task = 'later'"
    assert host.conn.execute(due).fetchone() == ("scheduled", True)
