"""Traces: a job carries the W3C `traceparent` of its enqueuer, and with OpenTelemetry both ends have spans.

The `traceparent` is part of `meta`, so it needs no column and is kept by COPY, SQL, retries and history. OpenTelemetry is
never imported here. Its API is used only if the process has imported it already, which a program that sets up a provider
(or uses `opentelemetry-instrument`) has done. An error in here leaves out a span and never breaks a job.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from pgworkers.errors import UsageError

TRACEPARENT_KEY, TRACESTATE_KEY = "traceparent", "tracestate"
#: How long spans that wait for their exporter may hold a worker that leaves.
SPAN_FLUSH_TIMEOUT_SECONDS = 2.0
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_OTEL_MODULE = "opentelemetry.trace"
_MAX_TRACEPARENT_CHARACTERS = 256
_MAX_TRACESTATE_CHARACTERS = 512


def parse_traceparent(text: Any) -> tuple[int, int, int] | None:
    """Trace, span and flags of a W3C `traceparent`, or None if it is not valid."""
    found = (
        _TRACEPARENT.fullmatch(text)
        if isinstance(text, str) and len(text) <= _MAX_TRACEPARENT_CHARACTERS
        else None
    )
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    trace, span = int(found["trace"], 16), int(found["span"], 16)
    return (trace, span, int(found["flags"], 16)) if trace and span else None


def require_traceparent(text: Any) -> str:
    """A `traceparent` given by the user, or a UsageError."""
    if parse_traceparent(text) is None:
        raise UsageError(
            f"traceparent: {str(text)[:80]!r} is not W3C's 00-<32 hex digits>-<16 hex digits>-<2 hex digits>; "
            "nothing was enqueued"
        )
    return str(text)


def traceparent_of(meta: Mapping[str, Any] | Any) -> str | None:
    """The `traceparent` in a job's meta, if there is a good one."""
    found = meta.get(TRACEPARENT_KEY) if isinstance(meta, Mapping) else None
    return found if parse_traceparent(found) is not None else None


def with_current_span(meta_json: str | None) -> str | None:
    """The meta of a new job, with the current span in it, unless it has a `traceparent` already."""
    api = _otel()
    if api is None or (meta_json is not None and f'"{TRACEPARENT_KEY}"' in meta_json):
        return meta_json
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return meta_json
    words = {
        TRACEPARENT_KEY: f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    }
    state = context.trace_state.to_header() if context.trace_state else ""
    if state and len(state) <= _MAX_TRACESTATE_CHARACTERS and state.isascii():
        words[TRACESTATE_KEY] = state
    return json.dumps({**(json.loads(meta_json) if meta_json else {}), **words})


class EnqueueSpan:
    """The span of one enqueue, or nothing."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set_job(self, job: int, queue: str | None, created: bool) -> None:
        if self._span is not None:
            self._span.set_attributes(
                {
                    "messaging.message.id": str(job),
                    "messaging.destination.name": queue or "default",
                    "pgworkers.queue": queue or "default",
                    "pgworkers.job": job,
                    "pgworkers.created": created,
                }
            )


_NO_SPAN = EnqueueSpan()


def enqueue_span(task: str) -> AbstractContextManager[EnqueueSpan]:
    """A PRODUCER span around one enqueue; it is what the job then carries."""
    api = _otel()
    return nullcontext(_NO_SPAN) if api is None else _start_enqueue_span(api, task)


@contextmanager
def _start_enqueue_span(api: Any, task: str) -> Iterator[EnqueueSpan]:
    attributes = {"messaging.system": "pgworkers", "messaging.operation.type": "send", "pgworkers.task": task}
    with _tracer(api).start_as_current_span(
        f"enqueue {task}", kind=api.SpanKind.PRODUCER, attributes=attributes
    ) as span:
        yield EnqueueSpan(span)


class AttemptSpan:
    """The span of one attempt: child of the enqueue and linked to it, current while the handler runs."""

    def __init__(
        self,
        api: Any,
        task: str,
        queue: str,
        job: int,
        attempt: int,
        meta: Mapping[str, Any],
        started_at_ns: int | None = None,
    ) -> None:
        self._api = api
        self._current = ExitStack()
        came = _remote_context(api, meta)
        context = None if came is None else api.set_span_in_context(api.NonRecordingSpan(came))
        self._span = _tracer(api).start_span(
            f"attempt {task}",
            context=context,
            kind=api.SpanKind.CONSUMER,
            start_time=started_at_ns,
            links=() if came is None else (api.Link(came),),
            attributes={
                "messaging.system": "pgworkers",
                "messaging.operation.type": "process",
                "messaging.destination.name": queue,
                "messaging.message.id": str(job),
                "pgworkers.task": task,
                "pgworkers.queue": queue,
                "pgworkers.job": job,
                "pgworkers.attempt": attempt,
            },
        )
        self._current.enter_context(
            api.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)
        )

    def end(self, verdict: str, error: str | None, is_success: bool, ended_at_ns: int | None = None) -> None:
        try:
            self._current.close()
            self._span.set_attribute("pgworkers.verdict", verdict)
            if not is_success:
                self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, error or verdict))
            self._span.end(ended_at_ns)
        except Exception:
            pass


def start_attempt_span(
    task: str, queue: str, job: int, attempt: int, meta: Mapping[str, Any]
) -> AttemptSpan | None:
    """A CONSUMER span for one attempt, if this process has OpenTelemetry."""
    api = _otel()
    if api is None:
        return None
    try:
        return AttemptSpan(api, task, queue, job, attempt, meta)
    except Exception:
        return None


def end_killed_span(
    *,
    task: str,
    queue: str,
    job: int,
    attempt: int,
    verdict: str,
    error: str | None,
    meta: Mapping[str, Any],
    ended_at: float,
    duration: float,
) -> None:
    """Make the span of an attempt whose process was killed before it could end its own. In the reporter."""
    api = _otel()
    if api is None:
        return
    try:
        span = AttemptSpan(
            api, task, queue, job, attempt, meta, started_at_ns=int((ended_at - duration) * 1e9)
        )
        span.end(verdict, error, is_success=False, ended_at_ns=int(ended_at * 1e9))
    except Exception:
        pass


def is_enabled() -> bool:
    """True if this process has OpenTelemetry. Called for every job."""
    return _OTEL_MODULE in sys.modules and _otel() is not None


def flush() -> None:
    """Export the spans that wait, within the given time."""
    api = _otel()
    provider = None if api is None else api.get_tracer_provider()
    force = getattr(provider, "force_flush", None)
    if force is None:
        return
    thread = threading.Thread(target=_flush_quietly, args=(force,), name="pgworkers-flush", daemon=True)
    thread.start()
    thread.join(SPAN_FLUSH_TIMEOUT_SECONDS)


def _flush_quietly(force: Any) -> None:
    try:
        force(int(SPAN_FLUSH_TIMEOUT_SECONDS * 1000))
    except Exception:
        pass


def _otel() -> Any:
    """`opentelemetry.trace`, if it is imported completely."""
    found = sys.modules.get(_OTEL_MODULE)
    if found is None:
        return None
    return found if hasattr(found, "get_tracer") and hasattr(found, "use_span") else None


def _tracer(api: Any) -> Any:
    return api.get_tracer("pgworkers")


def _remote_context(api: Any, meta: Mapping[str, Any]) -> Any:
    found = parse_traceparent(traceparent_of(meta))
    if found is None:
        return None
    trace, span, flags = found
    state = meta.get(TRACESTATE_KEY)
    header = [state] if isinstance(state, str) and len(state) <= _MAX_TRACESTATE_CHARACTERS else []
    return api.SpanContext(
        trace_id=trace,
        span_id=span,
        is_remote=True,
        trace_flags=api.TraceFlags(flags),
        trace_state=api.TraceState.from_header(header),
    )
