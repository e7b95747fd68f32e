"""Finish: one end per job, written only by the lease that ran it, whatever the handler left behind."""

from __future__ import annotations

from typing import Any

import pytest
from support.database_host import DatabaseHost

from pgworkers.job import cancel, finish, queries, requeue
from pgworkers.job.finish import JobFinish
from pgworkers.job.model import JobState, Verdict


def rows(host: DatabaseHost, table: str) -> int:
    (count,) = host.conn.execute(f"SELECT count(*) FROM pgworkers.{table}").fetchone() or (0,)
    return int(count)


def test_a_success_moves_to_history_with_its_result_and_costs(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim(meta_json='{"why": "x"}')
    host.listen()
    assert (
        host.finish_job(
            job,
            result='{"url": "u"}',
            duration_seconds=1.5,
            cpu_seconds=1.25,
            peak_rss_bytes=4096,
            progress="[3, 3]",
        )
        == "written"
    )
    seen = host.job_view(job.id)
    assert (seen.state, seen.verdict, seen.result) == (JobState.SUCCEEDED, "succeeded", {"url": "u"})
    assert (seen.duration, seen.cpu_seconds, seen.peak_rss) == (1.5, 1.25, 4096)
    assert (seen.progress, seen.meta, seen.error) == ([3, 3], {"why": "x"}, None)
    assert str(seen.host) == host.id
    assert (rows(host, "job"), rows(host, "history"), rows(host, "attempt")) == (0, 1, 0)
    assert host.notifications() == [("pgworkers_done", str(job.id))]


def test_only_a_success_drops_its_arguments(host: DatabaseHost) -> None:
    """A dead or cancelled job can run again, so it keeps them."""
    kept, *dropping = [host.enqueue_and_claim(args='{"page": 7}') for _ in range(4)]
    ends = [
        JobFinish(
            id=kept.id,
            lease=kept.lease,
            claimed_at_us=kept.claimed_at_us,
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
        )
    ]
    for job, state, verdict in zip(
        dropping,
        (JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED),
        (Verdict.SUCCEEDED, Verdict.ERROR, Verdict.CANCELLED),
        strict=True,
    ):
        ends.append(
            JobFinish(
                id=job.id,
                lease=job.lease,
                claimed_at_us=job.claimed_at_us,
                state=state,
                verdict=verdict,
                should_keep_args=False,
            )
        )
    assert host.execute(finish.finish(host.id, ends)) == {}, "all were written"
    page = {"page": 7}
    assert [host.job_view(end.id).args for end in ends] == [page, {}, page, page]


def test_a_death_keeps_its_post_mortem(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    answer = host.finish_job(
        job,
        JobState.DEAD,
        verdict=Verdict.CRASH,
        is_crash=True,
        error="ended by SIGSEGV",
        traceback="Traceback…",
        stack="Fatal Python error",
        exit_status="SIGSEGV",
        output="last words",
        rungs='[{"rung": "kill", "after": 1.0}]',
        worker="a/0 pid 7",
        version="1.2",
        progress='{"done": 3}',
        checkpoint='{"page": 3}',
    )
    assert answer == "written"
    seen = host.job_view(job.id)
    assert (seen.state, seen.verdict, seen.crashes, seen.error) == (
        JobState.DEAD,
        "crash",
        1,
        "ended by SIGSEGV",
    )
    assert (seen.checkpoint, seen.result) == ({"page": 3}, None)
    (attempt,) = host.execute(queries.job_attempts(job.id))
    assert (attempt.attempt, attempt.lease, attempt.verdict) == (1, 1, "crash")
    assert (attempt.error, attempt.traceback, attempt.stack) == (
        "ended by SIGSEGV",
        "Traceback…",
        "Fatal Python error",
    )
    assert (attempt.exit_status, attempt.output, attempt.worker) == ("SIGSEGV", "last words", "a/0 pid 7")
    assert (attempt.progress, attempt.rungs) == ({"done": 3}, [{"rung": "kill", "after": 1.0}])
    assert attempt.started_at == seen.started_at


def test_a_stale_lease_writes_nothing(host: DatabaseHost, other: DatabaseHost) -> None:
    stale = host.enqueue_and_claim()
    assert host.retry_job(stale, delay_seconds=0) == "written"
    (fresh,) = other.claim()
    assert host.finish_job(stale, result="1") == "lost"
    assert host.job_view(stale.id).state is JobState.CLAIMED
    assert other.finish_job(fresh, result="2") == "written"
    assert host.finish_job(stale, result="1") == "lost"
    assert host.job_view(stale.id).result == 2


def test_a_send_whose_acknowledgement_was_lost_is_answered_already(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    assert host.finish_job(job, result="1") == "written"
    assert host.finish_job(job, result="1") == "already"
    assert (rows(host, "history"), host.job_view(job.id).result) == (1, 1)


def test_a_job_that_another_session_finished_under_this_lease_is_lost(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job = host.enqueue_and_claim()
    host.conn.execute("UPDATE pgworkers.job SET host = %s WHERE id = %s", [other.id, job.id])
    assert other.finish_job(job, JobState.DEAD, error="x") == "written"
    assert host.finish_job(job, JobState.DEAD, error="x") == "lost"


def test_a_batch_answers_for_each_row(host: DatabaseHost) -> None:
    for _ in range(4):
        host.enqueue()
    one, two, three, four = host.claim(4)
    host.finish_job(two)
    host.retry_job(three)
    ends = [
        JobFinish(
            **four.fence._asdict(),
            state=JobState.DEAD,
            verdict=Verdict.DISCARDED,
            error="no",
        ),
        JobFinish(
            **three.fence._asdict(),
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
        ),
        JobFinish(
            **two.fence._asdict(),
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
        ),
        JobFinish(
            **one.fence._asdict(),
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
            result="5",
        ),
        JobFinish(
            **one.fence._asdict(),
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
            result="5",
        ),
        JobFinish(id=10**12, lease=1, claimed_at_us=1, state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED),
    ]
    answers = host.finish(ends)
    assert [answers[end.fence] for end in ends] == [
        "written",
        "lost",
        "already",
        "written",
        "written",
        "lost",
    ]
    assert [state for _, state in host.states()] == ["succeeded", "succeeded", "scheduled", "dead"]


def partitions(host: DatabaseHost, table: str) -> int:
    """How many partitions of this table the transaction has locked."""
    row = host.conn.execute(
        "SELECT count(DISTINCT l.relation) FROM pg_locks l JOIN pg_inherits i ON i.inhrelid = l.relation"
        " WHERE l.pid = pg_backend_pid() AND i.inhparent = %s::regclass",
        [f"pgworkers.{table}"],
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_an_end_opens_only_the_partition_that_it_writes_into(host: DatabaseHost) -> None:
    """Of others there are as many as days are kept, and each costs a lock and the look at its indexes."""
    jobs = [host.enqueue_and_claim() for _ in range(3)]
    with host.conn.transaction():
        assert host.finish_job(jobs[0]) == "written"
        assert (partitions(host, "history"), partitions(host, "attempt")) == (1, 0)
    with host.conn.transaction():
        assert host.finish_job(jobs[1], JobState.DEAD, error="x") == "written"
        assert (partitions(host, "history"), partitions(host, "attempt")) == (1, 1)
    with host.conn.transaction():
        assert host.retry_job(jobs[2]) == "written"
        assert (partitions(host, "history"), partitions(host, "attempt")) == (0, 1)


def test_an_empty_batch_is_not_an_error(host: DatabaseHost) -> None:
    assert host.execute(finish.finish(host.id, [])) == {}


def test_the_last_ten_errors_are_remembered_one_line_each(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim(max_attempts=100)
    for n in range(12):
        assert host.retry_job(job, delay_seconds=0, error=f"error {n}\nwith a second line") == "written"
        (job,) = host.claim()
    assert job.errors == [f"error {n} with a second line" for n in range(2, 12)]
    host.finish_job(job, JobState.DEAD, error="the end")
    (errors,) = host.conn.execute("SELECT errors FROM pgworkers.history").fetchone() or ([],)
    assert errors[-1] == "the end"
    assert len(errors) == 10


def test_a_success_after_failures_shows_no_error(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.retry_job(job, delay_seconds=0, error="first time unlucky")
    (job,) = host.claim()
    host.finish_job(job)
    assert host.job_view(job.id).error is None


HOSTILE: list[dict[str, Any]] = [
    {"error": "nul \x00 in it", "traceback": "\ud800", "output": "\x00" * 10, "stack": "\udfff\x00"},
    {"result": '"\\u0000"'},
    {"result": '"\\ud800"'},
    {"result": "[NaN, Infinity, -Infinity]"},
    {"result": "1e400000"},
    {"result": "[1e-400000, 0.0e-99999]"},
    {"result": "9" * 200_000},
    {"result": "[" * 10_000 + "]" * 10_000},
    {"result": "this is no JSON"},
    {"result": ""},
    {"result": '"' + "x" * 2_000_000 + '"'},
    {"result": '"\x01 raw control"'},
    {"progress": "NaN", "checkpoint": '{"a": "\\u0000"}', "rungs": "nope"},
    {"progress": "{", "checkpoint": "{"},
    {"error": "x" * 50_000_000},
    {"error": "", "exit_status": "\x00", "worker": "\x00", "version": "\ud8ff"},
    {"duration_seconds": float("nan"), "cpu_seconds": float("inf"), "peak_rss_bytes": 2**62},
]


@pytest.mark.parametrize("left", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.DEAD])
def test_nothing_a_handler_leaves_behind_stops_its_job_or_its_neighbours(
    host: DatabaseHost, left: dict[str, Any], state: JobState
) -> None:
    host.enqueue()
    host.enqueue()
    bad, good = host.claim(2)
    verdict = Verdict.SUCCEEDED if state is JobState.SUCCEEDED else Verdict.ERROR
    ends = [
        JobFinish(**bad.fence._asdict(), state=state, verdict=verdict, **left),
        JobFinish(
            **good.fence._asdict(),
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
            result="1",
        ),
    ]
    assert host.execute(finish.finish(host.id, ends)) == {}
    assert host.job_view(bad.id).state is state  # and it can be read back
    assert host.job_view(good.id).result == 1


def test_a_finish_waits_for_no_cancel_which_does_not_undo_the_success(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job = host.enqueue_and_claim()
    with other.conn.transaction():
        assert other.execute(cancel.cancel(job.id)) == "cancelling"
        assert host.finish_job(job, result="1") == "locked"
    assert host.finish_job(job, result="1") == "written"
    assert host.job_view(job.id).state is JobState.SUCCEEDED
    assert other.execute(cancel.cancel(job.id)) == "succeeded"


def test_many_results_share_one_notification_and_too_many_become_a_star(host: DatabaseHost) -> None:
    host.conn.execute("SELECT pgworkers.enqueue('t', queue => 'a') FROM generate_series(1, 2000)")
    few, many = host.claim(3), host.claim(1900)
    host.listen()
    for batch in (few, many):
        ends = [
            JobFinish(
                **j.fence._asdict(),
                state=JobState.SUCCEEDED,
                verdict=Verdict.SUCCEEDED,
            )
            for j in batch
        ]
        assert host.execute(finish.finish(host.id, ends)) == {}
    assert host.notifications() == [
        ("pgworkers_done", " ".join(str(job.id) for job in few)),
        ("pgworkers_done", "*"),
    ]


def test_two_batches_in_opposite_order_do_not_deadlock(host: DatabaseHost, other: DatabaseHost) -> None:
    for _ in range(200):
        host.enqueue()
    jobs = host.claim(200)
    ends = [JobFinish(**j.fence._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED) for j in jobs]
    waiting = other.in_thread(finish.finish(host.id, ends[::-1]))
    mine = host.execute(finish.finish(host.id, ends))
    theirs = waiting.result(timeout=20)
    assert mine.keys() ^ theirs.keys() == {end.fence for end in ends}, "each is written by one of them"
    assert set(host.finish(ends).values()) == {"already"}


def test_a_requeued_job_runs_under_a_higher_lease_so_its_past_cannot_end_it(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.finish_job(job, JobState.DEAD, error="x")
    host.execute(requeue.requeue([job.id]))
    (again,) = host.claim()
    assert again.lease == job.lease + 1
    assert host.finish_job(job, JobState.DEAD, error="x") == "lost"
    assert host.finish_job(again) == "written"


def test_each_end_of_a_mixed_batch_keeps_what_is_its_own(host: DatabaseHost) -> None:
    """They are distinguished by the position of their ids; jobs that are gone do not move the positions of the others."""
    for _ in range(9):
        host.enqueue()
    jobs = host.claim(9)
    assert host.finish_job(jobs[4]) == "written"
    ends = []
    for n, job in enumerate(jobs):
        said: dict[str, Any] = {"state": JobState.SUCCEEDED, "verdict": Verdict.SUCCEEDED, "result": str(n)}
        if n % 3 == 0:
            said = {
                "state": JobState.DEAD,
                "verdict": Verdict.ERROR,
                "error": f"error {n}",
                "output": f"out {n}",
            }
        ends.append(
            JobFinish(
                **job.fence._asdict(),
                duration_seconds=n / 8,
                peak_rss_bytes=n << 20,
                **said,
            )
        )
    answers = host.finish(ends[::-1])
    assert list(answers.values()).count("written") == 8
    assert answers[jobs[4].fence] == "already"
    for n, job in enumerate(jobs):
        if n == 4:
            continue
        seen = host.job_view(job.id)
        assert (seen.duration, seen.peak_rss) == (n / 8, n << 20)
        assert (seen.result, seen.error) == ((None, f"error {n}") if n % 3 == 0 else (n, None))
        assert [a.output for a in host.execute(queries.job_attempts(job.id))] == (
            [f"out {n}"] if n % 3 == 0 else []
        )


def test_of_two_ends_of_one_job_the_valid_one_is_written_whichever_lease_is_higher(
    host: DatabaseHost,
) -> None:
    """After a failover an older lease than the newest this host knows may be the valid one: it is sent again by itself."""
    job = host.enqueue_and_claim()
    old, new = (
        JobFinish(
            id=job.id,
            lease=lease,
            claimed_at_us=job.claimed_at_us,
            state=JobState.SUCCEEDED,
            verdict=Verdict.SUCCEEDED,
        )
        for lease in (job.lease, job.lease + 1)
    )
    assert host.finish([new, old]) == {old.fence: "again", new.fence: "lost"}
    assert host.finish([old]) == {old.fence: "written"}
