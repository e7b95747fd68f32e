"""Results that a trigger of the user refuses: reported, without blocking other results, and written once it allows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.database_host import PATIENCE, DatabaseHost

from pgworkers.events import (
    AttemptEnded,
    DatabaseConnectionLost,
    Event,
    EventBus,
    FinishFailed,
    FinishRejected,
)
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import JobState, Verdict
from pgworkers.master import deferred_results
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.settings import Settings
from pgworkers.specs import TaskSpec

TRIGGER = """
CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not on a Sunday' {}; END $$;
CREATE TRIGGER of_the_user BEFORE UPDATE OR DELETE ON pgworkers.job
   FOR EACH ROW WHEN (OLD.priority = 7 AND OLD.state = 'running') EXECUTE FUNCTION public.no();
"""


async def until(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not fact():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["", "USING ERRCODE = 'check_violation'"], ids=["P0001", "23514"])
@pytest.mark.parametrize("again", [False, True], ids=["finish", "retry"])
def test_a_trigger_that_raises_holds_up_one_job_and_loses_nothing(
    dsn: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, how: str, again: bool
) -> None:
    monkeypatch.setattr(deferred_results, "MIN_REFUSED_RETRY_SECONDS", 0.05)
    host = DatabaseHost(db, "pgworkers")
    host.register()
    ids = [host.enqueue(priority=7 if n == 1 else 0) for n in range(4)]
    jobs = {job.id: job for job in host.claim(4)}
    db.execute(TRIGGER.format(how).encode())
    told: list[Event] = []

    def facts(kind: type[Any]) -> list[Any]:
        return [fact for fact in told if isinstance(fact, kind)]

    def end(number: int) -> JobFinish | JobRetry:
        fence = jobs[number].fence._asdict()
        if again and number == ids[1]:
            return JobRetry(**fence, verdict=Verdict.ERROR, delay_seconds=60.0, error="boom")
        return JobFinish(**fence, state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED, result=str(number))

    async def story() -> None:
        heard = EventBus()
        heard.subscribe(told.append)
        line = ReconnectingConnection(
            "finish", dsn, Settings(statement_timeout=60.0), heard
        )  # long, so that a busy machine loses nothing
        ends = Finisher(host.id, line, heard, batch=100)
        for number in ids:
            ends.add(HeldJob(jobs[number], TaskSpec("t", "a")), end(number))
        sending = asyncio.ensure_future(ends.run())
        try:
            await until(lambda: len(facts(AttemptEnded)) == 3)
            await until(lambda: len(facts(FinishFailed)) == 2)  # and once more, later
            assert not sending.done()
            assert ends.pending_fences() == [jobs[ids[1]].fence], "it is still ours"
            assert not ends.all_written.is_set()
            assert host.job_view(ids[1]).state is JobState.CLAIMED
            db.execute("DROP TRIGGER of_the_user ON pgworkers.job")
            await until(ends.all_written.is_set)
        finally:
            sending.cancel()
            await line.close()

    asyncio.run(story())
    assert [fact.job for fact in facts(AttemptEnded)] == [ids[0], ids[2], ids[3], ids[1]]
    assert {fact.job for fact in facts(FinishFailed)} == {ids[1]}
    assert all("not on a Sunday" in fact.error for fact in facts(FinishFailed))
    pauses = [fact.retry_in for fact in facts(FinishFailed)]
    assert pauses == sorted(set(pauses)), "ever longer"
    assert facts(DatabaseConnectionLost) == facts(FinishRejected) == []
    seen = host.job_view(ids[1])
    if again:
        assert (seen.state, seen.error) == (JobState.SCHEDULED, "boom")
    else:
        assert (seen.state, seen.result) == (JobState.SUCCEEDED, ids[1]), "with all that the handler left"


def test_a_locked_end_is_sent_again_while_other_ends_never_stop(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    """A busy host has always something to send; what it set aside must not wait until it has not."""
    host = DatabaseHost(db, "pgworkers")
    host.register()
    locked = host.enqueue_and_claim()
    told: list[Event] = []

    def ended() -> int:
        return sum(isinstance(fact, AttemptEnded) for fact in told)

    async def story() -> None:
        heard = EventBus()
        heard.subscribe(told.append)
        line = ReconnectingConnection("finish", dsn, Settings(statement_timeout=60.0), heard)
        ends = Finisher(host.id, line, heard, batch=1)

        def put_next() -> None:
            """The moment at which one end is written puts the next one: there is always one more."""
            held = HeldJob(host.enqueue_and_claim(), TaskSpec("t", "a"))
            held.on_written = put_next
            ends.add(
                held, JobFinish(**held.fence._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED)
            )

        with psycopg.connect(dsn) as operator:
            operator.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [locked.id])
            ends.add(
                HeldJob(locked, TaskSpec("t", "a")),
                JobFinish(**locked.fence._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED),
            )
            put_next()
            sending = asyncio.ensure_future(ends.run())
            await until(lambda: ended() > 20)
            assert host.job_view(locked.id).state is JobState.CLAIMED
        try:
            await until(
                lambda: any(isinstance(fact, AttemptEnded) and fact.job == locked.id for fact in told)
            )
            assert not ends.all_written.is_set(), "the others went on all the time"
        finally:
            sending.cancel()
            await line.close()

    asyncio.run(story())


@pytest.mark.parametrize("how", ["", "USING ERRCODE = 'check_violation'"], ids=["P0001", "23514"])
def test_a_refused_release_holds_up_no_other_and_is_sent_again(
    dsn: str, db: psycopg.Connection[Any], how: str
) -> None:
    host = DatabaseHost(db, "pgworkers")
    host.register()
    ids = [host.enqueue(priority=7 if n == 1 else 0) for n in range(4)]
    jobs = {job.id: job for job in host.claim(4)}
    db.execute(TRIGGER.format(how).encode())

    async def story() -> None:
        line = ReconnectingConnection("finish", dsn, Settings(statement_timeout=60.0), EventBus())
        ends = Finisher(host.id, line, EventBus(), batch=100)
        ends.release([jobs[number].fence for number in ids], "a test")
        sending = asyncio.ensure_future(ends.run())
        try:
            await until(lambda: [host.job_view(number).state for number in ids].count(JobState.READY) == 3)
            await until(lambda: ends.pending_fences() == [jobs[ids[1]].fence])  # it is still ours
            assert not sending.done()
            db.execute("DROP TRIGGER of_the_user ON pgworkers.job")
            await until(ends.all_written.is_set)
        finally:
            sending.cancel()
            await line.close()

    asyncio.run(story())
    assert {host.job_view(number).state for number in ids} == {JobState.READY}
