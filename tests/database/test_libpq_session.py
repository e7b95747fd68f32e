"""Statements through libpq return what psycopg returns, and a session is read to its end or closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psycopg
import pytest

from pgworkers.client.connections import LoopConnections
from pgworkers.postgres.arrays import Bigints, Doubles, Integers, Texts
from pgworkers.postgres.connect import aconnect
from pgworkers.postgres.session import AsyncSession
from pgworkers.postgres.statements import Query, Statement, arun
from pgworkers.settings import Settings

LONG = 30.0
VALUES = Statement(
    "values",
    "SELECT %(text)s::text, %(number)s::integer, %(large)s::bigint, %(number)s::integer + 1, %(real)s::double precision,"
    " %(yes)s::boolean, %(none)s::text, %(id)s::uuid, now() > 'epoch', '5 %%', '{\"a\": 1}'::jsonb, '1 h'::interval,"
    " %(texts)s::text[], %(numbers)s::integer[], %(larges)s::bigint[], %(reals)s::double precision[], ''::text",
)
PARAMS = {
    "text": "ä'\"\\$1 %s",
    "number": 7,
    "large": 1 << 40,
    "real": 0.5,
    "yes": True,
    "none": None,
    "id": "7b0ac1a6-6b7e-4e0e-9d8f-0123456789ab",
    "texts": Texts(["a", None, "ü"]),
    "numbers": Integers([1, -2]),
    "larges": Bigints([]),
    "reals": Doubles([0.25]),
}


def say(text: str, **params: Any) -> Query[list[tuple[Any, ...]]]:
    return Query(Statement("said", text), params, list)


@contextlib.asynccontextmanager
async def session(
    dsn: str, threshold: int | None = 0
) -> AsyncIterator[tuple[AsyncSession, psycopg.AsyncConnection[Any]]]:
    conn = await aconnect(Settings(dsn=dsn), dsn, "claim")
    conn.prepare_threshold = threshold
    try:
        yield AsyncSession(conn, "pgworkers"), conn
    finally:
        await conn.close()


def story(
    dsn: str, check_session: Callable[[AsyncSession, psycopg.AsyncConnection[Any]], Coroutine[Any, Any, None]]
) -> None:
    async def work() -> None:
        async with session(dsn) as (exchange, conn):
            await check_session(exchange, conn)

    asyncio.run(work())


@pytest.mark.parametrize("threshold", [0, None], ids=["prepared", "pooled"])
def test_values_go_and_come_as_with_a_cursor(emptied: str, threshold: int | None) -> None:
    async def work() -> None:
        async with session(emptied, threshold) as (exchange, conn):
            query = Query(VALUES, PARAMS, list)
            expected = await arun(conn, "pgworkers", query)
            for _ in range(3):
                assert await exchange.run(query, LONG) == expected
            other = Query(VALUES, PARAMS | {"number": 70_000, "text": None}, list)
            assert await exchange.run(other, LONG) == await arun(conn, "pgworkers", other)
            (count,) = await exchange.run(
                say("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'pgworkers%%'"), LONG
            )
            assert count[0] == (0 if threshold is None else 3), "one for each kind of values, and this one"

    asyncio.run(work())


def test_what_the_server_refuses_is_raised_and_the_session_goes_on(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, _: psycopg.AsyncConnection[Any]) -> None:
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedTable):
                await exchange.run(say("SELECT * FROM public.nowhere"), LONG)
            with pytest.raises(psycopg.errors.DivisionByZero) as caught:
                await exchange.run(say("SELECT 1 / %(n)s::integer", n=0), LONG)
            assert caught.value.sqlstate == "22012"
            assert caught.value.diag.message_primary == "division by zero"
            assert await exchange.run(say("SELECT 1"), LONG) == [(1,)]
        assert await exchange.run(say("SET work_mem = '5MB'"), LONG) == []

    story(emptied, check_session)


def test_concurrent_queries_get_their_own_answers(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, _: psycopg.AsyncConnection[Any]) -> None:
        asked = [exchange.run(say("SELECT %(n)s::integer", n=n), LONG) for n in range(20)]
        assert await asyncio.gather(*asked) == [[(n,)] for n in range(20)]

    story(emptied, check_session)


def test_what_the_socket_cannot_hold_goes_in_pieces(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, _: psycopg.AsyncConnection[Any]) -> None:
        large = Texts([str(n % 10) * 1000 for n in range(20_000)])
        ((count, back),) = await exchange.run(
            say("SELECT cardinality(%(t)s::text[]), %(t)s::text[]", t=large), LONG
        )
        assert (count, back) == (20_000, list(large))

    story(emptied, check_session)


def end(dsn: str, pid: int) -> None:
    """A session that is no longer read: the server would notice it at its statement timeout."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT pg_terminate_backend(%s)", [pid])


def test_a_server_that_does_not_answer_is_given_up_and_so_is_the_session(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, conn: psycopg.AsyncConnection[Any]) -> None:
        pid = conn.info.backend_pid
        slow = asyncio.ensure_future(exchange.run(say("SELECT pg_sleep(60)"), 0.05))
        behind = asyncio.ensure_future(exchange.run(say("SELECT 1"), LONG))
        with pytest.raises(psycopg.OperationalError, match="no answer within"):
            await slow
        with pytest.raises(psycopg.OperationalError):
            await behind
        assert exchange.is_closed
        assert conn.closed
        end(emptied, pid)

    story(emptied, check_session)


def test_the_answer_to_an_abandoned_query_is_not_used_for_another(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, conn: psycopg.AsyncConnection[Any]) -> None:
        pid = conn.info.backend_pid
        slow = asyncio.ensure_future(exchange.run(say("SELECT pg_sleep(60)"), LONG))
        waits = asyncio.ensure_future(exchange.run(say("SELECT 1"), LONG))
        await asyncio.sleep(0.01)
        waits.cancel()  # it was not sent yet: nothing is lost
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert not exchange.is_closed
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert exchange.is_closed
        with pytest.raises(psycopg.OperationalError):
            await exchange.run(say("SELECT 1"), LONG)
        end(emptied, pid)

    story(emptied, check_session)


def test_a_session_that_is_ended_under_a_statement_says_so(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, conn: psycopg.AsyncConnection[Any]) -> None:
        pid = conn.info.backend_pid
        slow = asyncio.ensure_future(exchange.run(say("SELECT pg_sleep(60)"), LONG))
        await asyncio.sleep(0.01)
        async with session(emptied) as (other, _):
            await other.run(say("SELECT pg_terminate_backend(%(pid)s::integer)", pid=pid), LONG)
        with pytest.raises(psycopg.OperationalError):
            await slow
        assert exchange.is_closed

    story(emptied, check_session)


def test_notifications_that_arrive_with_an_answer_are_delivered(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, conn: psycopg.AsyncConnection[Any]) -> None:
        heard: list[str] = []
        conn.add_notify_handler(lambda notice: heard.append(notice.payload))
        await exchange.run(say("LISTEN here"), LONG)
        await exchange.run(say("SELECT pg_notify('here', 'x')"), LONG)
        await exchange.run(say("SELECT 1"), LONG)
        assert heard == ["x"]

    story(emptied, check_session)


def test_a_statement_has_its_own_time_limit_and_a_slow_one_closes_its_session(emptied: str) -> None:
    async def check_session(exchange: AsyncSession, conn: psycopg.AsyncConnection[Any]) -> None:
        pid = conn.info.backend_pid
        for _ in range(5):
            await exchange.run(say("SELECT 1"), 0.2)
        assert await exchange.run(say("SELECT 2, pg_sleep(0.3)::text"), LONG) == [(2, "")], (
            "the limit of one before"
        )
        await exchange.run(say("SELECT 1"), 0.1)
        await asyncio.sleep(0.2)  # its limit does not apply to the next one
        with pytest.raises(psycopg.OperationalError, match="no answer within"):
            await exchange.run(say("SELECT pg_sleep(60)"), 0.1)
        end(emptied, pid)

    story(emptied, check_session)


def test_a_seat_in_the_middle_of_a_statement_is_not_closed_as_unused(emptied: str) -> None:
    """A worker that is idle closes its seats; a background task of its loop may be waiting for an answer."""

    async def connect(pooled: bool) -> AsyncSession:
        return AsyncSession(
            await aconnect(Settings(dsn=emptied), emptied, "client"),
            "pgworkers",
            should_cancel_on_server=True,
        )

    seats = LoopConnections(connect)
    loop = asyncio.new_event_loop()

    async def first() -> asyncio.Task[list[tuple[Any, ...]]]:
        await seats.run_once(say("SELECT 0"))
        task = asyncio.create_task(seats.run_once(say("SELECT 1 FROM pg_sleep(0.3)")))
        await asyncio.sleep(0.05)
        return task

    try:
        task = loop.run_until_complete(first())
        assert not task.done()
        seats.close_unused()
        assert loop.run_until_complete(asyncio.wait_for(task, LONG)) == [(1,)]
        seats.close_unused()
        assert loop.run_until_complete(asyncio.wait_for(seats.run_once(say("SELECT 2")), LONG)) == [(2,)]
        loop.run_until_complete(seats.close())
    finally:
        loop.close()


@pytest.mark.parametrize("way", ["ask", "command"])
def test_notifications_before_an_answer_are_taken_as_they_come(dsn: str, way: str) -> None:
    """A server sends all notifications before the answer. Those that libpq keeps until then fill the memory."""
    text = "SELECT pg_notify('flood', i || repeat('x', 7900)) FROM generate_series(1, 2000) i"

    async def check_session(exchange: AsyncSession, conn: psycopg.AsyncConnection[Any]) -> None:
        taken: list[int] = []  # in each turn of the loop
        turns = asyncio.create_task(count_turns(taken))

        def count_notification(_notice: psycopg.Notify) -> None:
            taken[-1] += 1

        await exchange.execute(b"LISTEN flood")
        conn.add_notify_handler(count_notification)
        await asyncio.sleep(0)
        await (exchange.run(say(text), LONG) if way == "ask" else exchange.execute(text.encode()))
        turns.cancel()
        assert sum(taken) == 2000
        assert max(taken) < 100, "they were kept until the answer was complete"

    story(dsn, check_session)


async def count_turns(counts: list[int]) -> None:
    while True:
        counts.append(0)
        await asyncio.sleep(0)
