"""Rescue: jobs of hosts that stopped renewing. Real time passes here: leases are short, rows are never back-dated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
from support.database_host import DatabaseHost, blocked, until

from pgworkers.job import cancel, hosts, queries, queues, requeue
from pgworkers.job.maintenance import RescuedJob, rescue_candidates, rescue_jobs
from pgworkers.job.model import MAX_CONSECUTIVE_LOSSES, JobState
from pgworkers.specs import TaskSpec


def lose(gone: DatabaseHost, seen_by: DatabaseHost) -> None:
    """Let the lease of a host run out."""
    gone.register(lease=0.05)
    until(
        lambda: any(
            seen.is_stale for seen in seen_by.execute(queries.list_hosts()) if str(seen.id) == gone.id
        )
    )


def test_a_lost_host_costs_its_job_an_attempt_and_no_crash(host: DatabaseHost, other: DatabaseHost) -> None:
    job = other.enqueue_and_claim()
    lose(other, host)
    with host.conn.transaction():  # one now() for both: the pause is short
        (rescued,) = host.execute(rescue_jobs(host.id, 10))
        error = rescued.error
        assert rescued == RescuedJob(job.id, 1, "a", "t", 1, JobState.SCHEDULED, error, job.max_attempts)
        assert error.startswith("host lost: no heartbeat for ")
        (pause,) = host.conn.execute(
            "SELECT extract(epoch FROM run_at - now())::float FROM pgworkers.job"
        ).fetchone() or (0,)
    assert 0 < pause <= 2.2
    seen = host.job_view(job.id)
    assert (seen.state, seen.crashes, seen.attempt, seen.host) == (JobState.SCHEDULED, 0, 1, None)
    assert seen.error is not None
    assert seen.error.startswith("host lost: no heartbeat for ")
    (attempt,) = host.execute(queries.job_attempts(job.id))
    assert (attempt.verdict, str(attempt.host), attempt.lease, attempt.error) == (
        "host_lost",
        other.id,
        1,
        seen.error,
    )


def test_a_host_without_a_row_is_lost_at_once(host: DatabaseHost, other: DatabaseHost) -> None:
    job = other.enqueue_and_claim()
    other.execute(hosts.remove_host(other.id))
    assert [rescued.id for rescued in host.execute(rescue_jobs(host.id, 10))] == [job.id]
    assert host.job_view(job.id).error == "host lost: its row is gone"


def test_a_living_host_and_the_asking_one_are_never_robbed(host: DatabaseHost, other: DatabaseHost) -> None:
    mine, theirs = host.enqueue_and_claim(), other.enqueue_and_claim()
    assert host.execute(rescue_jobs(host.id, 10)) == []
    lose(host, other)  # it asks although its own lease has run out
    assert host.execute(rescue_jobs(host.id, 10)) == []
    assert {state for _, state in host.states()} == {"running"}
    assert [rescued.id for rescued in other.execute(rescue_jobs(other.id, 10))] == [mine.id]
    assert other.finish_job(theirs) == "written"


def test_the_zombie_cannot_write_its_end_any_more(host: DatabaseHost, other: DatabaseHost) -> None:
    job = other.enqueue_and_claim()
    lose(other, host)
    host.execute(rescue_jobs(host.id, 10))
    assert other.finish_job(job, result="1") == "lost"
    assert other.retry_job(job) == "lost"
    assert host.job_view(job.id).state is JobState.SCHEDULED


def test_a_job_that_outlived_its_budgets_is_dead(host: DatabaseHost, other: DatabaseHost) -> None:
    no_crash = other.enqueue_and_claim(max_crashes=1)
    out_of_losses = other.enqueue_and_claim()
    host.conn.execute(
        "UPDATE pgworkers.job SET consecutive_losses = %s WHERE id = %s",
        [MAX_CONSECUTIVE_LOSSES - 1, out_of_losses.id],
    )
    out_of_attempts = other.enqueue_and_claim(max_attempts=1)
    out_of_time = other.enqueue_and_claim(deadline=0.0)
    lose(other, host)
    host.listen()
    rescued = host.execute(rescue_jobs(host.id, 10))
    dead = out_of_losses, out_of_attempts, out_of_time
    assert [(r.id, r.state) for r in rescued] == [
        (no_crash.id, JobState.SCHEDULED),
        *((job.id, JobState.DEAD) for job in dead),
    ]
    seen = host.job_view(out_of_losses.id)
    assert (seen.state, seen.verdict, seen.crashes) == (JobState.DEAD, "host_lost", 0)
    assert seen.error is not None
    assert seen.error.endswith(
        "not tried again: it was running in 10 deaths of its supervisor or host in a row"
    )
    assert len(host.execute(queries.job_attempts(out_of_time.id))) == 1
    assert host.notifications() == [("pgworkers_done", str(job.id)) for job in dead]
    assert other.finish_job(out_of_losses) == "lost"


def test_a_rescued_job_with_a_cancel_request_is_cancelled(host: DatabaseHost, other: DatabaseHost) -> None:
    job = other.enqueue_and_claim()
    host.execute(cancel.cancel(job.id))
    lose(other, host)
    assert [r.state for r in host.execute(rescue_jobs(host.id, 10))] == [JobState.CANCELLED]
    assert host.job_view(job.id).state is JobState.CANCELLED


def test_it_is_bounded_and_skips_what_is_locked(host: DatabaseHost, other: DatabaseHost) -> None:
    jobs = [other.enqueue_and_claim() for _ in range(5)]
    lose(other, host)
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [jobs[0].id])
        assert [r.id for r in host.execute(rescue_jobs(host.id, 2))] == [jobs[1].id, jobs[2].id]
    assert [r.id for r in host.execute(rescue_jobs(host.id, 10))] == [jobs[0].id, jobs[3].id, jobs[4].id]
    assert host.execute(rescue_jobs(host.id, 10)) == []


def test_a_unique_key_never_stands_in_the_way_because_a_running_job_keeps_it(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    job = other.enqueue_and_claim(unique_key="k")
    assert host.enqueue(unique_key="k") == job.id
    lose(other, host)
    assert len(host.execute(rescue_jobs(host.id, 10))) == 1
    assert host.enqueue(unique_key="k") == job.id


def test_a_job_that_takes_every_host_down_is_dead_in_the_end(host: DatabaseHost, other: DatabaseHost) -> None:
    job_id = other.enqueue(max_attempts=100, max_crashes=3)
    states = []
    for _ in range(MAX_CONSECUTIVE_LOSSES):
        other.register()
        host.execute(requeue.requeue([job_id]))  # no need to wait for the back-off
        assert other.claim()
        lose(other, host)
        states += [r.state for r in host.execute(rescue_jobs(host.id, 10))]
    assert states == [JobState.SCHEDULED] * (MAX_CONSECUTIVE_LOSSES - 1) + [JobState.DEAD]


def test_an_attempt_that_ended_by_itself_forgets_the_losses(host: DatabaseHost, other: DatabaseHost) -> None:
    job = other.enqueue_and_claim()
    lose(other, host)
    host.execute(rescue_jobs(host.id, 10))
    host.execute(requeue.requeue([job.id]))
    [again] = host.claim()
    assert again.consecutive_losses == 1
    assert host.retry_job(again) == "written"
    host.execute(requeue.requeue([job.id]))
    assert [one.consecutive_losses for one in host.claim()] == [0]


def test_a_task_says_what_becomes_of_its_jobs_when_their_host_is_lost(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    def spec(name: str, policy: bool | float | None) -> TaskSpec:
        return TaskSpec(name, "a", retry_verdicts={} if policy is None else {"host_lost": policy})

    policies = {"never": False, "later": 3600.0, "at_once": 0.0, "as_ever": True, "silent": None}
    host.execute(queues.declare_tasks([spec(name, policy) for name, policy in policies.items()]))
    assert host.execute(queues.declare_tasks([spec(name, policy) for name, policy in policies.items()])) == []
    jobs = {task: other.enqueue(task) for task in policies}
    other.claim(10, tasks=tuple(policies))
    lose(other, host)
    with host.conn.transaction():  # one now() for both: the pauses are short
        rescued = {one.task: one.state for one in host.execute(rescue_jobs(host.id, 10))}
        pauses = dict(
            host.conn.execute(
                "SELECT task, extract(epoch FROM run_at - now())::float FROM pgworkers.job"
            ).fetchall()
        )
    assert rescued == {task: JobState.DEAD if task == "never" else JobState.SCHEDULED for task in policies}
    assert host.job_view(jobs["never"]).verdict == "host_lost"
    assert 3500 < pauses["later"] <= 3600
    assert pauses["at_once"] <= 0
    assert 0 < pauses["as_ever"] <= 2.2
    assert 0 < pauses["silent"] <= 2.2


def test_a_clock_that_was_set_forward_makes_no_host_lost(host: DatabaseHost, other: DatabaseHost) -> None:
    """By the rows they are as old as after a jump; the asking host knows better."""
    job = other.enqueue_and_claim()
    clock = moment(host)
    host.conn.execute("UPDATE pgworkers.host SET renewed_at = renewed_at - interval '10 min'")
    reckoned = clock - timedelta(minutes=10)
    assert (
        host.execute(rescue_candidates(host.id, 10, host_clock=reckoned))
        == host.execute(rescue_jobs(host.id, 10, host_clock=reckoned))
        == []
    )
    assert host.execute(hosts.prune_hosts(10, host_clock=reckoned)).changed_rows == 0
    assert host.execute(rescue_candidates(host.id, 10, host_clock=clock)) == [job.id], (
        "and who is lost is lost"
    )
    later = clock + timedelta(days=1)
    other.register()
    assert host.execute(rescue_jobs(host.id, 10, host_clock=later)) == [], "the earlier one counts"


def test_a_rescue_after_the_clock_was_set_back_took_no_less_than_nothing(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    """Claimed before the jump: by the rows ten minutes from now."""
    first, second = other.enqueue_and_claim(), other.enqueue_and_claim()
    host.conn.execute("UPDATE pgworkers.job SET claimed_at = now() + interval '10 min'")
    host.conn.execute("UPDATE pgworkers.job SET max_attempts = 1 WHERE id = %s", [second.id])
    other.execute(hosts.remove_host(other.id))
    assert {one.state for one in host.execute(rescue_jobs(host.id, 10))} == {
        JobState.SCHEDULED,
        JobState.DEAD,
    }
    took = [host.execute(queries.job_attempts(job.id))[0].duration for job in (first, second)]
    assert [*took, host.job_view(second.id).duration] == [0, 0, 0]


def moment(host: DatabaseHost) -> datetime:
    row = host.conn.execute("SELECT clock_timestamp()").fetchone()
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
    host: DatabaseHost, other: DatabaseHost, session: Callable[[], psycopg.Connection[Any]], schema: str
) -> None:
    """Its snapshot is older than the new lease: it must not report the living host, which it cannot see yet, as lost."""
    job = other.enqueue_and_claim()
    other.execute(hosts.remove_host(other.id))
    (whole,) = host.conn.execute(
        "SELECT pg_get_functiondef('pgworkers.lost_host_ranges(uuid, timestamptz)'::regprocedure)"
    ).fetchone() or ("",)
    late, new = DatabaseHost(session(), schema), DatabaseHost(session(), schema)
    late.register()
    host.conn.execute(SLOW_GAPS)
    try:
        host.conn.execute("SELECT pg_advisory_lock(41)")
        rescuing = late.in_thread(rescue_jobs(late.id, 10))
        until(lambda: blocked(host.conn, late.conn))
        assert [rescued.id for rescued in host.execute(rescue_jobs(host.id, 10))] == [job.id]
        host.conn.execute("UPDATE pgworkers.job SET state = 'ready', run_at = now()")
        new.register()
        [again] = new.claim()
        host.conn.execute("SELECT pg_advisory_unlock_all()")
        assert rescuing.result() == []
    finally:
        host.conn.execute(whole.encode())
    assert [attempt.lease for attempt in host.execute(queries.job_attempts(job.id))] == [1]
    assert new.finish_job(again) == "written"
