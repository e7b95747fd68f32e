"""Rescue: jobs of hosts that stopped renewing. Real time passes here: leases are short, rows are never back-dated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
from support.database_host import Desk, blocked, until

from pgworkers.job import cancel, hosts, queries, queues, requeue
from pgworkers.job.maintenance import RescuedJob, rescue_candidates, rescue_jobs
from pgworkers.job.model import MAX_CONSECUTIVE_LOSSES, JobState
from pgworkers.specs import TaskSpec


def lose(gone: Desk, seen_by: Desk) -> None:
    """Let the lease of a host run out."""
    gone.register(lease=0.05)
    until(
        lambda: any(seen.stale for seen in seen_by.execute(queries.list_hosts()) if str(seen.id) == gone.host)
    )


def test_a_lost_host_costs_its_job_an_attempt_and_no_crash(desk: Desk, other: Desk) -> None:
    job = other.run_one()
    lose(other, desk)
    with desk.conn.transaction():  # one now() for both: the pause is short
        (rescued,) = desk.execute(rescue_jobs(desk.host, 10))
        error = rescued.error
        assert rescued == RescuedJob(job.id, 1, "a", "t", 1, JobState.SCHEDULED, error, job.max_attempts)
        assert error.startswith("host lost: no heartbeat for ")
        (pause,) = desk.conn.execute(
            "SELECT extract(epoch FROM run_at - now())::float FROM pgworkers.job"
        ).fetchone() or (0,)
    assert 0 < pause <= 2.2
    seen = desk.see(job.id)
    assert (seen.state, seen.crashes, seen.attempt, seen.host) == (JobState.SCHEDULED, 0, 1, None)
    assert seen.error is not None
    assert seen.error.startswith("host lost: no heartbeat for ")
    (attempt,) = desk.execute(queries.job_attempts(job.id))
    assert (attempt.verdict, str(attempt.host), attempt.lease, attempt.error) == (
        "host_lost",
        other.host,
        1,
        seen.error,
    )


def test_a_host_without_a_row_is_lost_at_once(desk: Desk, other: Desk) -> None:
    job = other.run_one()
    other.execute(hosts.remove_host(other.host))
    assert [rescued.id for rescued in desk.execute(rescue_jobs(desk.host, 10))] == [job.id]
    assert desk.see(job.id).error == "host lost: its row is gone"


def test_a_living_host_and_the_asking_one_are_never_robbed(desk: Desk, other: Desk) -> None:
    mine, theirs = desk.run_one(), other.run_one()
    assert desk.execute(rescue_jobs(desk.host, 10)) == []
    lose(desk, other)  # it asks although its own lease has run out
    assert desk.execute(rescue_jobs(desk.host, 10)) == []
    assert {state for _, state in desk.states()} == {"running"}
    assert [rescued.id for rescued in other.execute(rescue_jobs(other.host, 10))] == [mine.id]
    assert other.end(theirs) == "written"


def test_the_zombie_cannot_write_its_end_any_more(desk: Desk, other: Desk) -> None:
    job = other.run_one()
    lose(other, desk)
    desk.execute(rescue_jobs(desk.host, 10))
    assert other.end(job, result="1") == "lost"
    assert other.again(job) == "lost"
    assert desk.see(job.id).state is JobState.SCHEDULED


def test_a_job_that_outlived_its_budgets_is_dead(desk: Desk, other: Desk) -> None:
    no_crash = other.run_one(max_crashes=1)
    out_of_losses = other.run_one()
    desk.conn.execute(
        "UPDATE pgworkers.job SET consecutive_losses = %s WHERE id = %s",
        [MAX_CONSECUTIVE_LOSSES - 1, out_of_losses.id],
    )
    out_of_attempts = other.run_one(max_attempts=1)
    out_of_time = other.run_one(deadline=0.0)
    lose(other, desk)
    desk.listen()
    rescued = desk.execute(rescue_jobs(desk.host, 10))
    dead = out_of_losses, out_of_attempts, out_of_time
    assert [(r.id, r.state) for r in rescued] == [
        (no_crash.id, JobState.SCHEDULED),
        *((job.id, JobState.DEAD) for job in dead),
    ]
    seen = desk.see(out_of_losses.id)
    assert (seen.state, seen.verdict, seen.crashes) == (JobState.DEAD, "host_lost", 0)
    assert seen.error is not None
    assert seen.error.endswith(
        "not tried again: it was running in 10 deaths of its supervisor or host in a row"
    )
    assert len(desk.execute(queries.job_attempts(out_of_time.id))) == 1
    assert desk.notices() == [("pgworkers_done", str(job.id)) for job in dead]
    assert other.end(out_of_losses) == "lost"


def test_a_job_that_was_wished_away_is_cancelled_not_run_again(desk: Desk, other: Desk) -> None:
    job = other.run_one()
    desk.execute(cancel.cancel(job.id))
    lose(other, desk)
    assert [r.state for r in desk.execute(rescue_jobs(desk.host, 10))] == [JobState.CANCELLED]
    assert desk.see(job.id).state is JobState.CANCELLED


def test_it_is_bounded_and_skips_what_is_locked(desk: Desk, other: Desk) -> None:
    jobs = [other.run_one() for _ in range(5)]
    lose(other, desk)
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [jobs[0].id])
        assert [r.id for r in desk.execute(rescue_jobs(desk.host, 2))] == [jobs[1].id, jobs[2].id]
    assert [r.id for r in desk.execute(rescue_jobs(desk.host, 10))] == [jobs[0].id, jobs[3].id, jobs[4].id]
    assert desk.execute(rescue_jobs(desk.host, 10)) == []


def test_a_unique_key_never_stands_in_the_way_because_a_running_job_keeps_it(desk: Desk, other: Desk) -> None:
    job = other.run_one(unique_key="k")
    assert desk.put(unique_key="k") == job.id
    lose(other, desk)
    assert len(desk.execute(rescue_jobs(desk.host, 10))) == 1
    assert desk.put(unique_key="k") == job.id


def test_a_job_that_takes_every_host_down_is_dead_in_the_end(desk: Desk, other: Desk) -> None:
    job_id = other.put(max_attempts=100, max_crashes=3)
    states = []
    for _ in range(MAX_CONSECUTIVE_LOSSES):
        other.register()
        desk.execute(requeue.requeue([job_id]))  # no need to wait for the back-off
        assert other.take()
        lose(other, desk)
        states += [r.state for r in desk.execute(rescue_jobs(desk.host, 10))]
    assert states == [JobState.SCHEDULED] * (MAX_CONSECUTIVE_LOSSES - 1) + [JobState.DEAD]


def test_an_attempt_that_ended_by_itself_forgets_the_losses(desk: Desk, other: Desk) -> None:
    job = other.run_one()
    lose(other, desk)
    desk.execute(rescue_jobs(desk.host, 10))
    desk.execute(requeue.requeue([job.id]))
    [again] = desk.take()
    assert again.consecutive_losses == 1
    assert desk.again(again) == "written"
    desk.execute(requeue.requeue([job.id]))
    assert [one.consecutive_losses for one in desk.take()] == [0]


def test_a_task_says_what_becomes_of_its_jobs_when_their_host_is_lost(desk: Desk, other: Desk) -> None:
    def spec(name: str, policy: bool | float | None) -> TaskSpec:
        return TaskSpec(name, "a", retry_on={} if policy is None else {"host_lost": policy})

    policies = {"never": False, "later": 3600.0, "at_once": 0.0, "as_ever": True, "silent": None}
    desk.execute(queues.declare_tasks([spec(name, policy) for name, policy in policies.items()]))
    assert desk.execute(queues.declare_tasks([spec(name, policy) for name, policy in policies.items()])) == []
    jobs = {task: other.put(task) for task in policies}
    other.take(10, tasks=tuple(policies))
    lose(other, desk)
    with desk.conn.transaction():  # one now() for both: the pauses are short
        rescued = {one.task: one.state for one in desk.execute(rescue_jobs(desk.host, 10))}
        pauses = dict(
            desk.conn.execute(
                "SELECT task, extract(epoch FROM run_at - now())::float FROM pgworkers.job"
            ).fetchall()
        )
    assert rescued == {task: JobState.DEAD if task == "never" else JobState.SCHEDULED for task in policies}
    assert desk.see(jobs["never"]).verdict == "host_lost"
    assert 3500 < pauses["later"] <= 3600
    assert pauses["at_once"] <= 0
    assert 0 < pauses["as_ever"] <= 2.2
    assert 0 < pauses["silent"] <= 2.2


def test_a_clock_that_was_set_forward_makes_nobody_lost(desk: Desk, other: Desk) -> None:
    """By the rows they are as old as after a jump; the asking host knows better."""
    job = other.run_one()
    clock = moment(desk)
    desk.conn.execute("UPDATE pgworkers.host SET renewed_at = renewed_at - interval '10 min'")
    reckoned = clock - timedelta(minutes=10)
    assert (
        desk.execute(rescue_candidates(desk.host, 10, host_clock=reckoned))
        == desk.execute(rescue_jobs(desk.host, 10, host_clock=reckoned))
        == []
    )
    assert desk.execute(hosts.prune_hosts(10, host_clock=reckoned)).changed_rows == 0
    assert desk.execute(rescue_candidates(desk.host, 10, host_clock=clock)) == [job.id], (
        "and who is lost is lost"
    )
    later = clock + timedelta(days=1)
    other.register()
    assert desk.execute(rescue_jobs(desk.host, 10, host_clock=later)) == [], "the earlier one counts"


def test_a_rescue_after_the_clock_was_set_back_took_no_less_than_nothing(desk: Desk, other: Desk) -> None:
    """Claimed before the jump: by the rows ten minutes from now."""
    first, second = other.run_one(), other.run_one()
    desk.conn.execute("UPDATE pgworkers.job SET claimed_at = now() + interval '10 min'")
    desk.conn.execute("UPDATE pgworkers.job SET max_attempts = 1 WHERE id = %s", [second.id])
    other.execute(hosts.remove_host(other.host))
    assert {one.state for one in desk.execute(rescue_jobs(desk.host, 10))} == {
        JobState.SCHEDULED,
        JobState.DEAD,
    }
    took = [desk.execute(queries.job_attempts(job.id))[0].duration for job in (first, second)]
    assert [*took, desk.see(second.id).duration] == [0, 0, 0]


def moment(desk: Desk) -> datetime:
    row = desk.conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


SLOW_GAPS = """
CREATE OR REPLACE FUNCTION pgworkers.lost_host_ranges(asking_host uuid, host_clock timestamptz)
RETURNS TABLE (after_id uuid, before_id uuid)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_lock(41);
    RETURN QUERY SELECT '00000000-0000-0000-0000-000000000000'::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid;
END $$
"""


def test_what_was_rescued_and_begun_again_under_the_statement_is_left_alone(
    desk: Desk, other: Desk, session: Callable[[], psycopg.Connection[Any]], schema: str
) -> None:
    """Its snapshot is older than the new lease: it may not say that the living host, whom it cannot know yet, is lost."""
    job = other.run_one()
    other.execute(hosts.remove_host(other.host))
    (whole,) = desk.conn.execute(
        "SELECT pg_get_functiondef('pgworkers.lost_host_ranges(uuid, timestamptz)'::regprocedure)"
    ).fetchone() or ("",)
    late, new = Desk(session(), schema), Desk(session(), schema)
    late.register()
    desk.conn.execute(SLOW_GAPS)
    try:
        desk.conn.execute("SELECT pg_advisory_lock(41)")
        rescuing = late.in_thread(rescue_jobs(late.host, 10))
        until(lambda: blocked(desk.conn, late.conn))
        assert [rescued.id for rescued in desk.execute(rescue_jobs(desk.host, 10))] == [job.id]
        desk.conn.execute("UPDATE pgworkers.job SET state = 'ready', run_at = now()")
        new.register()
        [again] = new.take()
        desk.conn.execute("SELECT pg_advisory_unlock_all()")
        assert rescuing.result() == []
    finally:
        desk.conn.execute(whole.encode())
    assert [attempt.lease for attempt in desk.execute(queries.job_attempts(job.id))] == [1]
    assert new.end(again) == "written"
