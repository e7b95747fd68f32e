"""What a statement of a host answers, or how it fails; and what is counted of it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgworkers.events import Event, EventBus, StatementExecuted
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.postgres.statements import Query, Statement
from pgworkers.settings import Settings


def query(text: str) -> Query[list[tuple[Any, ...]]]:
    return Query(Statement("asked", text), {}, lambda rows: rows)


def ask(dsn: str, text: str, **how: Any) -> list[Any]:
    """What happened to one statement, in its order: what was counted, what the caller got."""
    happened: list[Any] = []

    def record_event(fact: Event) -> None:
        if isinstance(fact, StatementExecuted) and fact.statement == "asked":
            happened.append("it went well" if fact.error is None else "it failed")

    async def story() -> None:
        facts = EventBus()
        facts.subscribe(record_event)
        line = ReconnectingConnection("claim", dsn, Settings(statement_timeout=60.0), facts)
        try:
            happened.append(("got", await line.execute(query(text), **how)))
        except (ConnectionDown, psycopg.Error) as error:
            happened.append(("got", type(error).__name__))
        finally:
            await line.close()

    asyncio.run(story())
    return happened


def test_an_answer_is_returned_and_the_statement_counted(dsn: str) -> None:
    assert ask(dsn, "SELECT 7") == ["it went well", ("got", [(7,)])]


@pytest.mark.parametrize(
    ("text", "how", "got"),
    [
        ("SELECT 1 / 0", {}, "DivisionByZero"),
        ("SELECT nothing", {}, "ConnectionDown"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", {}, "ConnectionDown"),
        ("DO $$ BEGIN RAISE 'no'; END $$", {"raise_refusals": True}, "RaiseException"),
        ("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)", {}, "ConnectionDown"),
        (
            "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)",
            {"raise_timeouts": True},
            "QueryCanceled",
        ),
    ],
    ids=["data", "wrong", "cut", "refused", "slow", "slow by itself"],
)
def test_a_failed_statement_has_no_answer(dsn: str, text: str, how: dict[str, Any], got: str) -> None:
    assert ask(dsn, text, **how) == ["it failed", ("got", got)]
