"""The session of a process that enqueues: it answers as psycopg does, and an interrupted call leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.cluster import wait_for

from pgworkers.postgres.connect import aconnect, connect
from pgworkers.postgres.session import AsyncSession, BlockingSession
from pgworkers.postgres.statements import Query, Statement, run
from pgworkers.settings import Settings

VALUES = Statement(
    "values", "SELECT %(text)s::text, %(number)s::integer, %(none)s::text, %(real)s::double precision"
)
PARAMS = {"text": "ä'\"\\$1 %s", "number": 7, "none": None, "real": 0.5}
ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active'"


class Interrupted(BaseException):
    pass


def say(text: str, **params: Any) -> Query[list[tuple[Any, ...]]]:
    return Query(Statement("said", text), params, list)


@pytest.fixture
def seat(dsn: str) -> Iterator[BlockingSession]:
    conn = connect(Settings(dsn=dsn), dsn, "client")
    yield BlockingSession(conn, "pgworkers")
    conn.close()


@pytest.fixture
def interrupts() -> Iterator[None]:
    def raise_(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("binary", [False, True])
def test_the_answers_are_those_of_a_cursor(seat: BlockingSession, binary: bool) -> None:
    query = Query(VALUES, PARAMS, list, binary)
    expected = run(seat.conn, "pgworkers", query)
    for _ in range(8):
        assert seat.run(query) == expected
    assert seat.is_idle
    assert seat.is_reusable


def test_it_is_prepared_after_as_many_uses_as_the_connection_says(seat: BlockingSession) -> None:
    known = say("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'pgworkers%%'")
    number = Query(Statement("one", "SELECT %(n)s::integer"), {"n": 1}, list)
    seat.conn.prepare_threshold = None
    threshold = seat._prepare_threshold
    assert threshold is not None
    for _ in range(threshold):
        seat.run(number)
    assert run(seat.conn, "pgworkers", known) == [(0,)]
    seat.run(number)
    seat.run(number)
    assert run(seat.conn, "pgworkers", known) == [(1,)]


def test_a_statement_that_cannot_be_prepared_yet_can_be_later(seat: BlockingSession) -> None:
    query = Query(Statement("later", "SELECT n FROM public.later"), {}, list)
    for _ in range(8):
        with pytest.raises(psycopg.errors.UndefinedTable):
            seat.run(query)
    assert seat.is_idle
    seat.run(say("CREATE TABLE public.later AS SELECT 1 AS n"))
    assert seat.run(query) == seat.run(query) == [(1,)]


def test_what_is_larger_than_the_sockets_buffers_is_sent_whole(seat: BlockingSession) -> None:
    text = "x" * (20 << 20)
    assert seat.run(say("SELECT length(%(it)s::text)", it=text)) == [(len(text),)]
    assert seat.run(say("SELECT length(%(it)s::text)", it="y")) == [(1,)]


def test_a_signal_gets_through_and_the_server_stops(
    seat: BlockingSession, db: psycopg.Connection[Any], interrupts: None
) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(Interrupted):
        seat.run(say("SELECT pg_sleep(60)"))
    assert seat.is_closed
    wait_for(lambda: db.execute(ASLEEP.encode()).fetchone() == (0,), timeout=5)


def test_a_cancelled_task_leaves_no_statement_behind(dsn: str, db: psycopg.Connection[Any]) -> None:
    async def work() -> None:
        conn = await aconnect(Settings(dsn=dsn), dsn, "client")
        exchange = AsyncSession(conn, "pgworkers", should_cancel_on_server=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await exchange.run(say("SELECT pg_sleep(60)"), None)
        assert exchange.is_closed

    asyncio.run(work())
    wait_for(lambda: db.execute(ASLEEP.encode()).fetchone() == (0,), timeout=5)


def test_a_session_that_the_server_ended_is_not_quiet(
    seat: BlockingSession, db: psycopg.Connection[Any]
) -> None:
    assert seat.is_reusable
    db.execute("SELECT pg_terminate_backend(%s)", [seat.conn.info.backend_pid])
    wait_for(lambda: not seat.is_reusable, timeout=5)


def test_a_session_that_ends_under_a_statement_says_so(
    seat: BlockingSession, db: psycopg.Connection[Any]
) -> None:
    def end() -> None:
        wait_for(lambda: db.execute(ASLEEP.encode()).fetchone() == (1,), timeout=5)
        db.execute("SELECT pg_terminate_backend(%s)", [seat.conn.info.backend_pid])

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(psycopg.OperationalError):
        seat.run(say("SELECT pg_sleep(60)"))
    thread.join()
    assert seat.is_closed
