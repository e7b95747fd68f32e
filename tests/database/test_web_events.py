"""`pgworkers.web`: server-sent events of a job, over real HTTP; a lifespan; clients that leave; a database that is away."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from fastapi import FastAPI
from support.cluster import wait_for
from support.database_host import DatabaseHost

from pgworkers import App, SchemaOutOfDate, UsageError
from pgworkers.job import finish
from pgworkers.job.model import ClaimedJob, JobState
from pgworkers.postgres import connect
from pgworkers.settings import Settings
from pgworkers.web import JobEventStream, events, lifespan

Db = psycopg.Connection[Any]


@dataclass
class Event:
    name: str = ""
    id: str = ""
    data: Any = None


def parse(lines: Iterator[str]) -> Iterator[Event | str]:
    """The events of a stream as a browser reads them; a comment is its text."""
    event = Event()
    for line in lines:
        field, _, value = line.partition(":")
        match field:
            case "" if line.startswith(":"):
                yield value.strip()
            case "":
                if event.data is not None:
                    yield event
                event = Event()
            case "event":
                event.name = value.strip()
            case "id":
                event.id = value.strip()
            case "data":
                event.data = json.loads(value)
            case other:
                assert other == "retry"


class Stream:
    """A client that reads a stream in a thread."""

    def __init__(self, address: str, job: int, **headers: str) -> None:
        self.events: list[Event] = []
        self.comments: list[str] = []
        self.status = 0
        self.headers: httpx.Headers | None = None
        self._client = httpx.Client(timeout=60)
        self._url = f"{address}/jobs/{job}"
        self._headers = headers
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            with self._client.stream("GET", self._url, headers=self._headers) as answer:
                self.status, self.headers = answer.status_code, answer.headers
                if answer.status_code == 200:
                    for one in parse(answer.iter_lines()):
                        if isinstance(one, str):
                            self.comments.append(one)
                        else:
                            self.events.append(one)
        except httpx.TransportError:
            pass  # the server has stopped

    def join(self) -> list[Event]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._client.close()
        return self.events


@contextmanager
def serving(web: FastAPI) -> Iterator[str]:
    """The address of a real server."""
    server = uvicorn.Server(
        uvicorn.Config(web, port=0, log_level="warning", timeout_graceful_shutdown=5, lifespan="on")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the server did not start"
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn=dsn, poll_interval="0.05s", connect_timeout="2s")


@pytest.fixture
def worker(dsn: str) -> Iterator[DatabaseHost]:
    conn = connect.connect(Settings(statement_timeout=60.0), dsn, "test")
    made = DatabaseHost(conn, "pgworkers")
    made.register()
    yield made
    conn.close()


def make_web(app: App, **options: Any) -> FastAPI:
    web = FastAPI(lifespan=lifespan(app))

    @web.get("/jobs/{job_id}")
    async def job_events(job_id: int) -> JobEventStream:
        return events(app.job(job_id), **options)

    return web


@pytest.fixture
def address(app: App) -> Iterator[str]:
    with serving(make_web(app, heartbeat="0.2s")) as made:
        yield made


def report(worker: DatabaseHost, claimed: ClaimedJob, progress: str) -> None:
    update = finish.ProgressUpdate(**claimed.fence._asdict(), progress=progress, checkpoint=None)
    worker.execute(finish.save_progress(worker.id, [update]))


def sessions(db: Db) -> int:
    row = db.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name IN ('pgworkers wait', 'pgworkers client')"
    ).fetchone()
    assert row is not None
    return int(row[0])


def cut(db: Db) -> None:
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name IN ('pgworkers wait', 'pgworkers client')"
    )


def test_a_browser_sees_the_progress_and_the_end(address: str, worker: DatabaseHost) -> None:
    job = worker.enqueue()
    stream = Stream(address, job)
    wait_for(lambda: stream.events)
    (claimed,) = worker.claim()
    report(worker, claimed, '{"done": 1, "total": 4, "note": "a\\nb </script>\\u2028"}')
    wait_for(lambda: stream.events[-1].data["fraction"] == 0.25)
    worker.finish_job(claimed, JobState.DEAD, error="ValueError: /srv/secret")
    last = stream.join()[-1]
    assert stream.headers is not None
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-cache, no-transform"
    assert stream.events[0].name == "state"
    assert stream.events[-2].data["progress"]["note"] == "a\nb </script>\u2028"
    assert last.name == "end"
    assert last.data == {
        "job": job, "state": "dead", "attempt": 1, "verdict": "error", "fraction": 0.25,
        "progress": {"done": 1, "total": 4, "note": "a\nb </script>\u2028"},
    }  # fmt: skip


def test_the_result_and_the_error_are_sent_if_they_are_asked_for(app: App, worker: DatabaseHost) -> None:
    with serving(make_web(app, include_result=True, include_error=True)) as address:
        good, bad = worker.enqueue(), worker.enqueue()
        first, second = worker.claim(2)
        worker.finish_job(first, result='["a.png"]')
        worker.finish_job(second, JobState.DEAD, error="ValueError: no")
        (event,) = Stream(address, good).join()
        assert (event.name, event.data["result"]) == ("end", ["a.png"])
        (event,) = Stream(address, bad).join()
        assert (event.name, event.data["error"]) == ("end", "ValueError: no")
        assert "result" not in event.data


def test_a_client_that_reconnects_gets_what_it_has_not_seen(address: str, worker: DatabaseHost) -> None:
    job = worker.enqueue()
    first = Stream(address, job)
    wait_for(lambda: first.events)
    seen = first.events[0].id
    again = Stream(address, job, **{"Last-Event-ID": seen})
    wait_for(lambda: again.comments)
    assert again.events == []
    worker.finish_job(worker.claim()[0])
    (end,) = [event for event in again.join() if event.name == "end"]
    assert first.join()[-1] == end
    after = Stream(address, job, **{"Last-Event-ID": end.id})
    assert after.join() == []
    assert after.status == 204, "a browser that has seen the end must not reconnect for ever"
    (repeated,) = Stream(address, job, **{"Last-Event-ID": "x:" * 3000}).join()
    assert repeated == end


def test_a_job_that_is_not_there(address: str) -> None:
    stream = Stream(address, 999_999)
    assert stream.join() == []
    assert stream.status == 404


def test_clients_share_two_connections_and_are_forgotten_when_they_leave(
    app: App, address: str, db: Db, worker: DatabaseHost
) -> None:
    jobs = [worker.enqueue() for _ in range(5)]

    async def main() -> None:
        async with httpx.AsyncClient(timeout=60) as client:

            async def read(job: int) -> None:
                async with client.stream("GET", f"{address}/jobs/{job}") as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("event: state"):
                            arrived.append(job)

            arrived: list[int] = []
            readers = [asyncio.create_task(read(job)) for job in jobs for _ in range(4)]
            await asyncio.to_thread(wait_for, lambda: len(arrived) == 20 and sessions(db) >= 2)
            assert sessions(db) == 2
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(main())
    wait_for(lambda: sessions(db) <= 1, what="the listening connection is closed when no client is left")


def test_a_stream_survives_the_loss_of_the_database(
    app: App, address: str, db: Db, worker: DatabaseHost
) -> None:
    job = worker.enqueue()
    stream = Stream(address, job)
    wait_for(lambda: stream.events)
    real = app.client.database.dsn()
    app.client.database.use("host=127.0.0.1 port=1 dbname=none", app.client.settings)
    cut(db)
    late = Stream(address, job)
    wait_for(lambda: "the database does not answer" in late.comments)
    assert late.status == 200
    (claimed,) = worker.claim()
    report(worker, claimed, '{"done": 1}')
    app.client.database.use(real, app.client.settings)
    wait_for(lambda: stream.events[-1].data["progress"] == {"done": 1})
    worker.finish_job(claimed)
    assert stream.join()[-1].name == "end"
    assert late.join()[-1].name == "end"


def test_a_job_that_is_deleted_ends_its_stream(address: str, db: Db, worker: DatabaseHost) -> None:
    job = worker.enqueue()
    stream = Stream(address, job)
    wait_for(lambda: stream.events)
    db.execute("DELETE FROM pgworkers.job WHERE id = %s", [job])
    assert stream.join()[-1].name == "gone"


def test_a_server_does_not_start_on_a_database_without_our_tables(empty_dsn: str) -> None:
    async def main() -> None:
        with pytest.raises(SchemaOutOfDate, match="pgworkers migrate up"):
            async with lifespan(App(dsn=empty_dsn))(None):
                pass

    asyncio.run(main())


def test_a_server_starts_while_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with lifespan(App(dsn="host=127.0.0.1 port=1 dbname=none", name="shop"))(None):
            assert "shop starts, but cannot enqueue yet" in caplog.text

    asyncio.run(main())


def test_a_heartbeat_must_be_longer_than_nothing(app: App) -> None:
    with pytest.raises(UsageError, match="heartbeat"):
        events(app.job(1), heartbeat=0)


def test_connections_are_closed_when_the_server_stops(app: App, db: Db, worker: DatabaseHost) -> None:
    with serving(make_web(app, heartbeat="0.2s")) as address:
        stream = Stream(address, worker.enqueue())
        wait_for(lambda: stream.events)
    stream.join()
    wait_for(lambda: sessions(db) == 0)
