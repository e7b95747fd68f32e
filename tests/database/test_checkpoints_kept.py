"""A checkpoint reaches the next attempt, although its row is locked, its session hangs, or a trigger refuses others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest
from support.database_host import PATIENCE, DatabaseHost

from pgworkers.events import Event, EventBus, ProgressRefused
from pgworkers.job.finish import JobRetry, ProgressUpdate
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.settings import Settings
from pgworkers.specs import TaskSpec

#: Refuses the progress of jobs with priority 7.
TRIGGER = """
CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not on a Sunday'; END $$;
CREATE TRIGGER of_the_user BEFORE UPDATE OF checkpoint ON pgworkers.job
   FOR EACH ROW WHEN (OLD.priority = 7 AND NEW.state = 'running') EXECUTE FUNCTION public.no();
"""


async def until(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not fact():
            await asyncio.sleep(0.01)


class FinishingHost:
    """The finisher of a host on a real connection."""

    def __init__(self, dsn: str, db: psycopg.Connection[Any], limit: float = 60.0) -> None:
        self.host = DatabaseHost(db, "pgworkers")
        self.host.register()
        self.emitted: list[Event] = []
        events = EventBus()
        events.subscribe(self.emitted.append)
        self.connection = ReconnectingConnection("finish", dsn, Settings(statement_timeout=limit), events)
        self.finisher = Finisher(self.host.id, self.connection, events, batch=100)

    def save(self, job: ClaimedJob, progress: str | None, checkpoint: str | None) -> None:
        self.finisher.save_progress(ProgressUpdate(*job.fence, progress, checkpoint))

    def fail(self, job: ClaimedJob) -> None:
        again = JobRetry(**job.fence._asdict(), verdict=Verdict.ERROR, delay_seconds=60.0, error="boom")
        self.finisher.add(HeldJob(job, TaskSpec("t", "a")), again)

    def checkpoint(self, job: ClaimedJob) -> Any:
        return self.host.job_view(job.id).checkpoint

    def run(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            sending = asyncio.ensure_future(self.finisher.run())
            try:
                await scene()
                assert not sending.done()
            finally:
                sending.cancel()
                await self.connection.close()

        asyncio.run(run())


def test_a_checkpoint_of_a_locked_row_is_saved_once_the_lock_is_gone(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    mine = FinishingHost(dsn, db)
    locked, other = mine.host.enqueue_and_claim(), mine.host.enqueue_and_claim()

    async def scene() -> None:
        with psycopg.connect(dsn) as operator:
            operator.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [locked.id])
            mine.save(locked, None, '{"at": 1}')
            mine.save(other, None, '{"at": 2}')
            await until(lambda: mine.checkpoint(other) == {"at": 2})
            mine.save(locked, "5", None)
            mine.save(other, None, '{"at": 3}')
            await until(lambda: mine.checkpoint(other) == {"at": 3})
            assert mine.checkpoint(locked) is None
        await until(lambda: mine.checkpoint(locked) == {"at": 1})
        await until(lambda: mine.host.job_view(locked.id).progress == 5)

    mine.run(scene)


def test_a_retry_carries_the_checkpoint_that_another_session_kept_from_being_saved(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    mine = FinishingHost(dsn, db)
    job, other = mine.host.enqueue_and_claim(), mine.host.enqueue_and_claim()

    async def scene() -> None:
        with psycopg.connect(dsn) as operator:
            operator.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [job.id])
            mine.save(job, None, '{"at": 1}')
            mine.save(other, None, '{"at": 2}')
            await until(lambda: mine.checkpoint(other) == {"at": 2})
            mine.fail(job)
        await until(lambda: mine.host.job_view(job.id).state is JobState.SCHEDULED)

    mine.run(scene)
    assert mine.checkpoint(job) == {"at": 1}


def test_a_retry_carries_the_checkpoint_whose_session_hangs(dsn: str, db: psycopg.Connection[Any]) -> None:
    mine = FinishingHost(dsn, db, limit=0.5)
    warm, job = mine.host.enqueue_and_claim(), mine.host.enqueue_and_claim()

    async def scene() -> None:
        mine.save(warm, None, '{"at": 0}')
        await until(lambda: mine.checkpoint(warm) == {"at": 0})
        ((pid,),) = db.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgworkers finish' AND datname = current_database()"
        ).fetchall()
        os.kill(pid, signal.SIGSTOP)
        try:
            mine.save(job, None, '{"at": 1}')
            await asyncio.sleep(0.1)  # it is in flight: one turn of the loop sends it
            mine.fail(job)
            # On another session. The one that hangs goes on too late: the job no longer runs.
            await until(lambda: mine.host.job_view(job.id).state is JobState.SCHEDULED)
        finally:
            os.kill(pid, signal.SIGCONT)

    mine.run(scene)
    assert mine.checkpoint(job) == {"at": 1}


def test_a_trigger_that_refuses_one_checkpoint_stops_no_other(dsn: str, db: psycopg.Connection[Any]) -> None:
    mine = FinishingHost(dsn, db)
    ids = [mine.host.enqueue(priority=7 if n == 3 else 0) for n in range(8)]
    jobs = {job.id: job for job in mine.host.claim(8)}
    bad = jobs[ids[3]]
    db.execute(TRIGGER)

    async def scene() -> None:
        for job in jobs.values():
            mine.save(job, None, '{"at": 1}')
        await until(lambda: [mine.checkpoint(job) for job in jobs.values()].count({"at": 1}) == 7)
        await until(lambda: any(isinstance(fact, ProgressRefused) for fact in mine.emitted))
        assert mine.checkpoint(bad) is None
        mine.fail(bad)
        await until(lambda: mine.host.job_view(bad.id).state is JobState.SCHEDULED)

    mine.run(scene)
    assert mine.checkpoint(bad) == {"at": 1}, "with the retry, which the trigger allows"
    refused = [fact for fact in mine.emitted if isinstance(fact, ProgressRefused)]
    assert {fact.job for fact in refused} == {bad.id}
    assert "not on a Sunday" in refused[0].error


@pytest.mark.parametrize("kind", ["row", "table"])
def test_a_locked_queue_delays_a_throttle_and_no_result(
    dsn: str, db: psycopg.Connection[Any], kind: str
) -> None:
    mine = FinishingHost(dsn, db)
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('a') ON CONFLICT DO NOTHING")
    one, two = mine.host.enqueue_and_claim(), mine.host.enqueue_and_claim()

    def level() -> int:
        ((level,),) = db.execute("SELECT throttle_level FROM pgworkers.queue WHERE name = 'a'").fetchall()
        return int(level)

    async def scene() -> None:
        with psycopg.connect(dsn) as operator:
            if kind == "row":
                operator.execute("UPDATE pgworkers.queue SET workers = workers WHERE name = 'a'")
            else:
                operator.execute("LOCK TABLE pgworkers.queue IN ROW EXCLUSIVE MODE")
                operator.execute("LOCK TABLE pgworkers.queue IN SHARE ROW EXCLUSIVE MODE")
            mine.finisher.throttle("a", None)
            mine.fail(one)
            await until(lambda: mine.host.job_view(one.id).state is JobState.SCHEDULED)
            mine.fail(two)
            await until(lambda: mine.host.job_view(two.id).state is JobState.SCHEDULED)
            assert level() == 0
            assert not mine.finisher.all_written.is_set(), "it is sent again"
        await until(lambda: level() == 1)
        await until(mine.finisher.all_written.is_set)

    mine.run(scene)
