"""Results that take longer than the statement timeout: smaller batches, and nothing is lost or reported twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
from support.database_host import PATIENCE, DatabaseHost

from pgworkers.events import (
    AttemptEnded,
    Event,
    EventBus,
    FinishFailed,
    FinishRejected,
    FinishTooSlow,
    StatementExecuted,
)
from pgworkers.job.finish import JobFinish
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.settings import Settings
from pgworkers.specs import TaskSpec

JOBS = 120
#: 5 ms for each row, and one that is never fast enough.
TRIGGER = """
CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_sleep(CASE WHEN NEW.priority = 7 THEN 60 ELSE 0.005 END); RETURN NEW; END $$;
CREATE TRIGGER of_the_user BEFORE INSERT ON pgworkers.history FOR EACH ROW EXECUTE FUNCTION public.dawdle();
"""


class FinishScenario:
    """The results of a host on their way into the database, and the events about them."""

    def __init__(self, dsn: str, host: DatabaseHost, jobs: list[ClaimedJob], limit: float = 0.3) -> None:
        self.host = host
        self.jobs = jobs
        self.told: list[Event] = []
        self._heard = EventBus()
        self._heard.subscribe(self.told.append)
        self._line = ReconnectingConnection("finish", dsn, Settings(statement_timeout=limit), self._heard)
        self.ends = Finisher(host.id, self._line, self._heard, batch=len(jobs))

    def facts(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in self.told if isinstance(fact, kind)]

    def timeouts(self) -> int:
        return sum(fact.error == "QueryCanceled" for fact in self.facts(StatementExecuted))

    async def until(self, fact: Callable[[], Any]) -> None:
        """Wait for a fact; give up after 40 statements that timed out."""
        async with asyncio.timeout(PATIENCE):
            while not fact() and self.timeouts() < 40:
                await asyncio.sleep(0.01)

    def run_scenario(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            for job in self.jobs:
                end = JobFinish(
                    **job.fence._asdict(),
                    state=JobState.SUCCEEDED,
                    verdict=Verdict.SUCCEEDED,
                    result=str(job.id),
                )
                self.ends.add(HeldJob(job, TaskSpec("t", "a")), end)
            sending = asyncio.ensure_future(self.ends.run())
            try:
                await scene()
                await self.until(self.ends.all_written.is_set)
            finally:
                sending.cancel()
                await self._line.close()

        asyncio.run(run())
        ended = sorted(fact.job for fact in self.facts(AttemptEnded))
        assert ended == sorted(job.id for job in self.jobs), "each once"
        assert self.facts(FinishRejected) == []
        assert [state for _, state in self.host.states()] == ["succeeded"] * len(self.jobs)


def test_a_slow_trigger_makes_batches_smaller_and_one_hopeless_row_holds_up_no_other(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    host = DatabaseHost(db, "pgworkers")
    host.register()
    bad = host.enqueue(priority=7)
    db.execute("SELECT pgworkers.enqueue('t', queue => 'a') FROM generate_series(2, %s)", [JOBS])
    story = FinishScenario(dsn, host, host.claim(JOBS))
    db.execute(TRIGGER)

    async def scene() -> None:
        await story.until(lambda: len(story.facts(AttemptEnded)) >= JOBS - 1)
        assert len(story.facts(AttemptEnded)) == JOBS - 1, f"{story.timeouts()} statements took too long"
        assert story.facts(FinishFailed), "one could not be written, and is kept"
        db.execute("ALTER TABLE pgworkers.history DISABLE TRIGGER of_the_user")

    story.run_scenario(scene)
    assert len(story.facts(FinishTooSlow)) == 1, "it is told once"
    assert bad in {fact.job for fact in story.facts(FinishFailed)}
    assert host.job_view(bad).result == bad, "with what its handler returned"


def test_a_row_that_is_locked_holds_up_no_other(dsn: str, db: psycopg.Connection[Any]) -> None:
    """A host never waits for a row: it could be in a deadlock with a session that locks in an order of its own."""
    host = DatabaseHost(db, "pgworkers")
    host.register()
    db.execute("SELECT pgworkers.enqueue('t', queue => 'a') FROM generate_series(1, 64)")
    jobs = host.claim(64)
    story = FinishScenario(dsn, host, jobs, limit=1.0)

    async def scene() -> None:
        with db.transaction():
            db.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [jobs[40].id])
            await story.until(lambda: len(story.facts(AttemptEnded)) == 63)
            assert story.timeouts() == 0, "no statement waited for it"

    story.run_scenario(scene)
    assert story.facts(FinishTooSlow) == story.facts(FinishFailed) == []
