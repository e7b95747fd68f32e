"""Job events for browsers, and the life of an app inside a web server: `pgworkers[web]`, for Starlette and FastAPI.

`events(job)` is a response that sends the progress and the end of a job as server-sent events. All streams of a server
process share the connections of its event loop: one that listens, and one that looks (`client/watching`).

The id of an event is the state that it describes. A browser that reconnects sends it back, and gets only what has changed
since. A browser that has seen the end gets 204, which ends its reconnects. While the database does not answer, a stream
stays open and sends comments.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec

from pgworkers.app import App
from pgworkers.errors import DatabaseUnreachable, NotFound, PermissionDenied, PgworkersError
from pgworkers.handles import Job
from pgworkers.job import queries
from pgworkers.job.changes import WatchEvent
from pgworkers.job.queries import UnreadableValue
from pgworkers.options.values import Duration, read_duration

try:
    from starlette.responses import JSONResponse, Response
    from starlette.types import Receive, Scope, Send
except ImportError as error:
    raise ImportError(
        "pgworkers.web needs Starlette, which is not installed: pip install 'pgworkers[web]'"
    ) from error

_log = logging.getLogger("pgworkers.web")
#: How long a stream waits before it asks a database again that did not answer.
RETRY_SECONDS = 1.0
#: How long a stream is silent before it sends a comment, which keeps proxies from closing it.
DEFAULT_HEARTBEAT_SECONDS = 15.0
#: What a browser is asked to wait before it reconnects.
RECONNECT_MILLISECONDS = 2000
_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx must not hold events back
}


def lifespan(app: App) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan for Starlette or FastAPI: `FastAPI(lifespan=lifespan(jobs))`.

    The server does not start if the database has no tables of pgworkers, or those of another version. If the database does
    not answer, the server starts and a warning is logged. When the server stops, the connections of the app are closed.
    """

    @asynccontextmanager
    async def run(_web: Any) -> AsyncIterator[None]:
        try:
            await app.client.arun(queries.job_statuses([]))
        except DatabaseUnreachable as error:
            _log.warning("%s starts, but cannot enqueue yet: %s", app.name, error)
        except PermissionDenied:
            pass  # a login that may enqueue and not read
        try:
            yield
        finally:
            await app.aclose()
            await asyncio.to_thread(app.close)

    return run


def events(
    job: Job[Any],
    *,
    heartbeat: Duration = DEFAULT_HEARTBEAT_SECONDS,
    include_result: bool = False,
    include_error: bool = False,
) -> JobEventStream:
    """Return a response that streams a job's progress and end as server-sent events, for `EventSource` in a browser.

    Events are named `state`, `progress` and `end`. Their data is JSON: job, state, attempt, progress, fraction, and at the
    end the verdict. `include_result` adds the result to the end. `include_error` adds the error of the last failed attempt;
    it may name files, hosts and values, so it is not sent to browsers by default.

    It answers 404 if there is no such job. It does not check whether the user may see the job: do that first.
    """
    seconds = read_duration(heartbeat, what="heartbeat")
    return JobEventStream(
        job,
        heartbeat=DEFAULT_HEARTBEAT_SECONDS if seconds is None else seconds,
        include_result=include_result,
        include_error=include_error,
    )


class JobEventStream(Response):
    """The response of `events(job)`. It ends with the job, or when the client has left."""

    media_type = "text/event-stream"

    def __init__(self, job: Job[Any], *, heartbeat: float, include_result: bool, include_error: bool) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._job = job
        self._heartbeat = heartbeat
        self._include_result = include_result
        self._include_error = include_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        last_id = _last_event_id(scope)
        departure = asyncio.create_task(_wait_for_departure(receive))
        async with aclosing(self._messages(last_id)) as messages:
            try:
                await self._send_messages(messages, departure, scope, receive, send)
            finally:
                await _end_task(departure)

    async def _send_messages(
        self,
        messages: AsyncGenerator[str, None],
        departure: asyncio.Task[None],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        is_started = False
        pending: asyncio.Task[str | None] | None = None
        try:
            while True:
                pending = pending or asyncio.create_task(_next_or_none(messages))
                await asyncio.wait(
                    {pending, departure}, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED
                )
                if departure.done():
                    return None
                text: str | None = ": waiting\n\n"
                if pending.done():
                    try:
                        text = pending.result()
                    except PgworkersError as error:
                        if not is_started:
                            return await _refusal(error)(scope, receive, send)
                        text = _error_message(error)
                    pending = None
                if text is None and not is_started:
                    return await Response(status_code=204)(scope, receive, send)
                if not is_started:
                    is_started = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                is_last = text is None
                await send(
                    {"type": "http.response.body", "body": (text or "").encode(), "more_body": not is_last}
                )
                if is_last:
                    return None
        except OSError:
            return None  # the client has left
        finally:
            if pending is not None:
                await _end_task(pending)

    async def _messages(self, last_id: str) -> AsyncGenerator[str, None]:
        """The events after the one with this id, as text. Waits while the database does not answer."""
        while True:
            try:
                async with aclosing(self._job.awatch()) as changes:
                    async for event in changes:
                        event_id = _event_id(event)
                        if event_id != last_id:
                            yield await self._message(event, event_id)
                        last_id = event_id
                return
            except DatabaseUnreachable:
                yield ": the database does not answer\n\n"
                await asyncio.sleep(RETRY_SECONDS)

    async def _message(self, event: WatchEvent, event_id: str) -> str:
        data: dict[str, Any] = {
            "job": event.job_id,
            "state": event.state,
            "attempt": event.attempt,
            "progress": event.progress,
            "fraction": event.fraction,
        }
        if event.kind == "end":
            data["verdict"] = event.verdict
        if self._include_error:
            data["error"] = event.error
        if self._include_result and event.state == "succeeded":
            result = (await self._job.arefresh()).result
            data["result"] = None if isinstance(result, UnreadableValue) else result
        text = json.dumps(data, separators=(",", ":"))  # in ASCII: some readers split lines at U+2028
        return f"id: {event_id}\nevent: {event.kind}\nretry: {RECONNECT_MILLISECONDS}\ndata: {text}\n\n"


def _event_id(event: WatchEvent) -> str:
    """The state that an event describes, as its id: two equal ids mean that nothing has changed."""
    progress = hashlib.sha256(msgspec.json.encode(event.progress)).hexdigest()[:16]
    return f"{event.state}-{event.attempt}-{progress}"


def _last_event_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"last-event-id":
            return bytes(value).decode("latin-1")
    return ""


def _refusal(error: PgworkersError) -> Response:
    """The response when nothing was sent yet."""
    if isinstance(error, NotFound):
        return JSONResponse({"detail": "there is no such job"}, status_code=404)
    _log.error("the events of a job cannot be sent: %s", error)
    return JSONResponse({"detail": "the events of this job cannot be read"}, status_code=500)


def _error_message(error: PgworkersError) -> str:
    """The last event of a stream that cannot continue."""
    if not isinstance(error, NotFound):
        _log.error("the events of a job cannot be sent: %s", error)
    return 'event: gone\ndata: {"state": null}\n\n'


async def _next_or_none(messages: AsyncGenerator[str, None]) -> str | None:
    return await anext(messages, None)


async def _wait_for_departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end_task(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, PgworkersError):
        await task
