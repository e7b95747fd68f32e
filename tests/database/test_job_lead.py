"""The term of leadership: one host takes it, only its holder renews it, and it is free when it ran out or was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pgworkers.events import Fact, LeaderChanged
from pgworkers.facts import Facts
from pgworkers.job import lead
from pgworkers.job.look import look
from pgworkers.master.leadership import Leadership
from pgworkers.master.line import Line, LineDown
from pgworkers.postgres.statements import Query, run
from pgworkers.settings import Settings

LONG = 3600.0


class Candidate:
    """A host's leading session."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.id = str(uuid4())

    def ask(self, query: Query[Any]) -> Any:
        return run(self.conn, "pgworkers", query)

    def tries(self, *, may_depose: bool = True) -> lead.Tried:
        found: lead.Tried = self.ask(lead.try_to_lead(self.id, LONG, may_depose=may_depose))
        return found


@pytest.fixture
def candidates(dsn: str) -> Iterator[list[Candidate]]:
    with ExitStack() as stack:
        yield [
            Candidate(stack.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=None)))
            for _ in range(3)
        ]


def run_out(db: psycopg.Connection[Any]) -> None:
    db.execute("UPDATE pgworkers.leader SET valid_until = now() - interval '1 s'")


def test_one_leads_until_it_resigns(candidates: list[Candidate]) -> None:
    first, second, _ = candidates
    won = first.tries()
    assert (won.term, won.is_locked) == (1, True)
    assert second.tries().term is None
    assert first.ask(lead.renew(first.id, 1, LONG)) is True
    assert second.ask(lead.renew(second.id, 1, LONG)) is None
    first.ask(lead.resign(first.id, 1))
    assert second.tries().term == 2


def test_a_session_that_ended_frees_the_term_at_once(candidates: list[Candidate]) -> None:
    first, second, _ = candidates
    first.tries()
    first.conn.close()
    deadline = 1000
    while (won := second.tries(may_depose=False)).term is None and deadline:
        deadline -= 1
    assert (won.term, won.ran_out) == (2, False)


def test_a_term_that_ran_out_is_taken_and_its_session_ended(
    candidates: list[Candidate], db: psycopg.Connection[Any]
) -> None:
    first, second, third = candidates
    first.tries()
    run_out(db)
    assert third.tries(may_depose=False).term is None, "it has not renewed without a gap itself"
    won = second.tries()
    assert (won.term, won.ran_out, won.is_locked) == (2, True, False)
    assert first.ask(lead.renew(first.id, 1, LONG)) is None, "the number of the term is the fence"
    assert won.former is not None
    assert second.ask(lead.depose(won.former))
    with pytest.raises(psycopg.OperationalError):
        first.conn.execute("SELECT 1")
    assert second.ask(lead.renew(second.id, 2, LONG)) is True, "now it has the lock, too"


def test_a_term_that_ran_out_and_was_not_taken_is_renewed(
    candidates: list[Candidate], db: psycopg.Connection[Any]
) -> None:
    first, second, _ = candidates
    first.tries()
    run_out(db)
    assert first.ask(lead.renew(first.id, 1, LONG)) is True
    assert second.tries().term is None


def test_the_lock_of_a_stranger_stops_neither_taking_nor_renewing(
    candidates: list[Candidate], db: psycopg.Connection[Any]
) -> None:
    first, second, _ = candidates
    db.execute(
        "SELECT pg_advisory_lock_shared((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint)"
    )
    won = first.tries()
    assert (won.term, won.is_locked) == (1, False)
    assert first.ask(lead.renew(first.id, 1, LONG)) is False
    assert [one.pid for one in second.ask(lead.lock_holders())] == [db.info.backend_pid]
    db.execute("SELECT pg_advisory_unlock_all()")
    assert second.tries().term is None
    assert first.ask(lead.renew(first.id, 1, LONG)) is True
    assert second.ask(lead.lock_holders()) == []


def test_a_host_whose_term_has_run_out_does_nothing_until_it_has_renewed(dsn: str) -> None:
    """As after a freeze: the session is alive, and another host may lead."""
    told: list[Fact] = []

    async def story() -> None:
        settings, facts = Settings(statement_timeout=60.0), Facts()
        facts.listen(told.append, LeaderChanged)
        lines = [Line("leadership", dsn, settings, facts) for _ in range(2)]
        first, second = (
            Leadership(str(uuid4()), line, facts, settings, lambda _: True, lambda: None) for line in lines
        )
        try:
            await first._round()
            await first.ask(look())
            first._valid_until = 0.0
            with pytest.raises(LineDown, match="run out"):
                await first.ask(look())
            await first._round()
            await first.ask(look())
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
                await conn.execute(
                    "UPDATE pgworkers.leader SET valid_until = now() - interval '1 s', pid = pid"
                )
            second_try = await lines[1].ask(lead.try_to_lead(second._host, 60.0, may_depose=True))
            assert second_try.ran_out  # and its session is left alive, as where the roles differ
            await first._round()
            assert not first.leads
            with pytest.raises(LineDown, match="does not lead"):
                await first.ask(look())
        finally:
            for line in lines:
                await line.close()

    asyncio.run(story())
    assert [fact.leads for fact in told if isinstance(fact, LeaderChanged)] == [True, False]
