"""The term of leadership: one host takes it, only its holder renews it, and it is free when it ran out or was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pgworkers.events import Event, EventBus, LeadershipChanged
from pgworkers.job import hosts
from pgworkers.job.maintenance import due_duties
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.master.leadership import Leadership
from pgworkers.postgres.statements import Query, run
from pgworkers.settings import Settings

LONG = 3600.0


class Candidate:
    """A host's leading session."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.id = str(uuid4())

    def execute(self, query: Query[Any]) -> Any:
        return run(self.conn, "pgworkers", query)

    def tries(self, *, may_depose: bool = True) -> hosts.LeadershipAnswer:
        found: hosts.LeadershipAnswer = self.execute(hosts.try_lead(self.id, LONG, may_depose=may_depose))
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
    assert (won.term, won.has_lock) == (1, True)
    assert second.tries().term is None
    assert first.execute(hosts.renew_term(first.id, 1, LONG)) is True
    assert second.execute(hosts.renew_term(second.id, 1, LONG)) is None
    first.execute(hosts.resign(first.id, 1))
    assert second.tries().term == 2


def test_a_session_that_ended_frees_the_term_at_once(candidates: list[Candidate]) -> None:
    first, second, _ = candidates
    first.tries()
    first.conn.close()
    deadline = 1000
    while (won := second.tries(may_depose=False)).term is None and deadline:
        deadline -= 1
    assert (won.term, won.was_expired) == (2, False)


def test_a_term_that_ran_out_is_taken_and_its_session_ended(
    candidates: list[Candidate], db: psycopg.Connection[Any]
) -> None:
    first, second, third = candidates
    first.tries()
    run_out(db)
    assert third.tries(may_depose=False).term is None, "it has not renewed without a gap itself"
    won = second.tries()
    assert (won.term, won.was_expired, won.has_lock) == (2, True, False)
    assert first.execute(hosts.renew_term(first.id, 1, LONG)) is None, "the number of the term is the fence"
    assert won.former_session is not None
    assert second.execute(hosts.depose(won.former_session))
    with pytest.raises(psycopg.OperationalError):
        first.conn.execute("SELECT 1")
    assert second.execute(hosts.renew_term(second.id, 2, LONG)) is True, "now it has the lock, too"


def test_a_term_that_ran_out_and_was_not_taken_is_renewed(
    candidates: list[Candidate], db: psycopg.Connection[Any]
) -> None:
    first, second, _ = candidates
    first.tries()
    run_out(db)
    assert first.execute(hosts.renew_term(first.id, 1, LONG)) is True
    assert second.tries().term is None


def test_the_lock_of_a_stranger_stops_neither_taking_nor_renewing(
    candidates: list[Candidate], db: psycopg.Connection[Any]
) -> None:
    first, second, _ = candidates
    db.execute(
        "SELECT pg_advisory_lock_shared((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint)"
    )
    won = first.tries()
    assert (won.term, won.has_lock) == (1, False)
    assert first.execute(hosts.renew_term(first.id, 1, LONG)) is False
    assert [one.pid for one in second.execute(hosts.lock_holders())] == [db.info.backend_pid]
    db.execute("SELECT pg_advisory_unlock_all()")
    assert second.tries().term is None
    assert first.execute(hosts.renew_term(first.id, 1, LONG)) is True
    assert second.execute(hosts.lock_holders()) == []


def test_a_host_whose_term_has_run_out_does_nothing_until_it_has_renewed(dsn: str) -> None:
    """As after a freeze: the session is alive, and another host may lead."""
    told: list[Event] = []

    async def story() -> None:
        settings, facts = Settings(statement_timeout=60.0), EventBus()
        facts.subscribe(told.append, LeadershipChanged)
        lines = [ReconnectingConnection("leadership", dsn, settings, facts) for _ in range(2)]
        first, second = (
            Leadership(str(uuid4()), line, facts, settings, lambda _: True, lambda: None) for line in lines
        )
        try:
            await first._run_once()
            await first.execute(due_duties())
            first._valid_until = 0.0
            with pytest.raises(ConnectionDown, match="run out"):
                await first.execute(due_duties())
            await first._run_once()
            await first.execute(due_duties())
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
                await conn.execute(
                    "UPDATE pgworkers.leader SET valid_until = now() - interval '1 s', pid = pid"
                )
            second_try = await lines[1].execute(hosts.try_lead(second._host_id, 60.0, may_depose=True))
            assert second_try.was_expired  # and its session is left alive, as where the roles differ
            await first._run_once()
            assert not first.is_leader
            with pytest.raises(ConnectionDown, match="does not lead"):
                await first.execute(due_duties())
        finally:
            for line in lines:
                await line.close()

    asyncio.run(story())
    assert [fact.is_leader for fact in told if isinstance(fact, LeadershipChanged)] == [True, False]
