"""Events as log lines: text for people, JSON for machines; one line per event (docs/reference/log-lines.md).

Texts that come from jobs are escaped, so that no payload can forge a line. Lines of one kind that come faster than a
person can read are counted instead of listed: logging must never limit the rate of jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from pgworkers import events
from pgworkers.clock import monotonic
from pgworkers.events import MEASUREMENTS, BatchHandler, each
from pgworkers.observe import log_messages
from pgworkers.observe.escape import encode_json_line, escape_line, printable

#: The keys of every JSON line, in this order; null where a line has no such thing.
JSON_KEYS = ("at", "level", "host", "pid", "event", "job", "task", "queue", "attempt", "message", "data")
#: How much larger the share of lines is that are not about a success.
FAILURE_RATE_FACTOR = 5
LIMIT_PERIOD_SECONDS = 1.0
#: Tasks that a summary names; the others are counted together.
MAX_NAMED_TASKS = 5
#: Keys that are left out of the data of a line: they have a place of their own, or the message shows what people need.
KEYS_OUTSIDE_DATA = frozenset({"job", "task", "queue", "attempt", "args"})
#: Events without a line: they are for metrics and tests, and some occur thousands of times a second.
UNLOGGED_EVENTS: frozenset[type] = frozenset(
    {
        events.AttemptStarted,
        events.StatementExecuted,
        events.JobsClaimed,
        events.NotificationReceived,
        events.DutyPerformed,
        events.LogLinesDropped,  # the writer says it, when it can
        events.StopCompleted,
        events.WorkerForked,
        events.WorkerReady,
        events.SupervisorStarted,
        events.SupervisorBooted,
        events.TickFired,
        *MEASUREMENTS,
    }
)


def json_record(
    *,
    level: str,
    host: str,
    pid: int,
    event: str,
    message: str,
    job: int | None = None,
    task: str | None = None,
    queue: str | None = None,
    attempt: int | None = None,
    data: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One JSON line before it is encoded; its keys are `JSON_KEYS`."""
    return {
        "at": utc_timestamp(time.time()),
        "level": level,
        "host": host,
        "pid": pid,
        "event": event,
        "job": job,
        "task": task,
        "queue": queue,
        "attempt": attempt,
        "message": message,
        "data": data or {},
    }


def utc_timestamp(now: float) -> str:
    """UTC, with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


class LineLimiter:
    """Limits the lines of one kind per second, and counts the rest. Pure: the time is an argument."""

    __slots__ = ("lines_left", "max_lines", "period_start", "suppressed")

    def __init__(self, max_lines: int, now: float) -> None:
        self.max_lines = max_lines
        self.lines_left = max_lines
        self.period_start = now
        self.suppressed: dict[str, int] = {}

    def try_take(self, what: str) -> bool:
        """True if one more line may be written. If not, it is counted under `what`."""
        if self.lines_left:
            self.lines_left -= 1
            return True
        self.suppressed[what] = self.suppressed.get(what, 0) + 1
        return False

    def next_period(self, now: float) -> dict[str, int]:
        """Start the next second. Returns what was counted in the last one."""
        if now - self.period_start < LIMIT_PERIOD_SECONDS:
            return {}
        hidden, self.suppressed = self.suppressed, {}
        self.period_start, self.lines_left = now, self.max_lines
        return hidden


class Log:
    """Writes a line for each event.

    The host calls `write_summaries` a few times a second. It writes what was counted and opens the next second, so that
    no event has to read a clock for it.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        format: str = "text",
        is_quiet: bool = False,
        rate: int = 0,
        host: str = "localhost",
        pid: int = 0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._write = write
        self._json = format == "json"
        self._quiet = is_quiet
        self._rate = rate
        self._host = escape_line(host, 64)
        self._pid = pid
        self._now = now
        self._limiters: dict[str, LineLimiter] = {}
        self._clock = (0, "")

    def write_message(self, text: str) -> None:
        """Write a line that is not an event, for example at the start."""
        self.write("info", "message", text, {})

    def write(self, level: str, event: str, message: str, data: dict[str, Any]) -> None:
        """Write a line that is not about a job."""
        if self._json:
            host, pid = self._host, self._pid
            self._write(
                encode_json_line(
                    json_record(level=level, host=host, pid=pid, event=event, message=message, data=data)
                )
            )
        else:
            self._write(printable(message if event == "message" else f"{self._local_time()} {message}"))

    def handler_for(self, kind: type) -> BatchHandler | None:
        if kind is events.AttemptEnded:
            return self._on_job_ended
        return None if kind in UNLOGGED_EVENTS else each(self)

    def __call__(self, event: events.Event) -> None:
        if type(event) in UNLOGGED_EVENTS:
            return
        if isinstance(event, events.AttemptEnded):
            self._on_job_ended(iter((event,)))
            return
        message = log_messages.message_of(event)
        if message is not None and self._is_within_limit(type(event).__name__, ""):
            self._write_event(event, message)

    def _on_job_ended(self, batch: Iterator[events.AttemptEnded]) -> None:
        quiet = self._quiet
        for event in batch:
            if event.state == "succeeded":
                if not quiet and self._is_within_limit("done", event.task):
                    self._write_event(event, log_messages.message_of(event))
            elif self._is_within_limit("not done", f"{event.task} {event.verdict}"):
                self._write_event(event, log_messages.message_of(event))

    def _write_event(self, event: events.Event, message: log_messages.LogMessage | None) -> None:
        if message is None:
            return
        level, text = message
        if self._json:
            self._write(encode_json_line(self._event_record(level, event, text)))
        else:
            # printable() escapes what the sentence did not: one event is one line, and only stack lines begin with a bar
            line = printable(f"{self._local_time()} {text}{log_messages.job_suffix(event, self._host)}")
            self._write(line + log_messages.stack_lines(event))

    def flush_summaries(self) -> None:
        """Write all that was counted."""
        self.write_summaries(inf)

    def write_summaries(self, now: float | None = None) -> None:
        """Write what was counted in seconds that are over."""
        now = self._now() if now is None else now
        for kind, share in self._limiters.items():
            hidden = share.next_period(now)
            if hidden:
                self._write_summary(kind, hidden)

    def dropped_lines_message(self, count: int, why: str) -> str:
        """The line that says how many lines were dropped. The writer needs it when writing works again."""
        text = f"{count:,} log lines were dropped: {why}"
        if self._json:
            data = {"count": count, "why": why}
            host, pid = self._host, self._pid
            return encode_json_line(
                json_record(
                    level="warning", host=host, pid=pid, event="LogLinesDropped", message=text, data=data
                )
            )
        return f"{self._local_time()} {text}"

    def _is_within_limit(self, kind: str, what: str) -> bool:
        if not self._rate:
            return True
        share = self._limiters.get(kind)
        if share is None:
            max_lines = self._rate if kind == "done" else self._rate * FAILURE_RATE_FACTOR
            share = self._limiters[kind] = LineLimiter(max_lines, self._now())
        return share.try_take(what)

    def _write_summary(self, kind: str, hidden: dict[str, int]) -> None:
        count = sum(hidden.values())
        ranked = sorted(hidden.items(), key=lambda one: -one[1])
        named = [f"{escape_line(name, 60)} {number:,}" for name, number in ranked[:MAX_NAMED_TASKS]]
        if len(ranked) > MAX_NAMED_TASKS:
            named.append(
                f"{len(ranked) - MAX_NAMED_TASKS} others {sum(n for _, n in ranked[MAX_NAMED_TASKS:]):,}"
            )
        jobs = kind in ("done", "not done")
        what = f"job{'s' * (count != 1)} {kind} ({', '.join(named)})" if jobs else kind
        text = f"… and {count:,} more {what} in the last second"
        data = {"kind": kind, "count": count, "of": dict(ranked[:MAX_NAMED_TASKS])}
        self.write("info" if kind == "done" else "warning", "summary", text, data)

    def _event_record(self, level: str, event: events.Event, text: str) -> dict[str, Any]:
        known: dict[str, Any] = {name: getattr(event, name) for name in type(event).__match_args__}
        data = {name: value for name, value in known.items() if name not in KEYS_OUTSIDE_DATA}
        return json_record(
            level=level,
            host=self._host,
            pid=self._pid,
            event=type(event).__name__,
            message=text,
            job=known.get("job") or None,
            task=known.get("task") or None,
            queue=known.get("queue"),
            attempt=known.get("attempt") or None,
            data=data,
        )

    def _local_time(self) -> str:
        second = int(time.time())
        if second != self._clock[0]:
            self._clock = (second, time.strftime("%H:%M:%S", time.localtime(second)))
        return self._clock[1]
