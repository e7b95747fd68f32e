"""Failed attempts as events in Sentry, and schedules as its cron monitors. Install `pgworkers[sentry]`.

    from pgworkers.integrations import sentry

    sentry.install(app, dsn="https://...", environment="production")

Everything is sent by the reporter, after the end of an attempt is written. So kills, crashes and lost hosts arrive as well
as exceptions, each attempt once, and a Sentry that does not answer delays no job. sentry_sdk is initialized in the
reporter only: it starts threads, and a process with threads must not fork workers.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any

from pgworkers.app import App
from pgworkers.hooks import JobEnd, TickReport
from pgworkers.integrations.traceback_frames import (
    TextException,
    TextFrame,
    TextThread,
    read_dump,
    read_traceback,
)
from pgworkers.job.model import Verdict
from pgworkers.specs import ScheduleSpec

#: How long the reporter waits for Sentry to take an event. Other reports wait in their queue meanwhile.
FLUSH_TIMEOUT_SECONDS = 2.0
#: Minutes by which a run of a schedule may be late before Sentry counts it as missed.
CHECK_IN_MARGIN_MINUTES = 5
MAX_SLUG_CHARACTERS = 50
_CHECK_INS = uuid.UUID("0d3cf4cf-57a5-4ac1-8a39-3b0bd9c8a5e6")


def install(
    app: App,
    *,
    verdicts: str | Iterable[str] = "failed",
    schedules: bool = True,
    send_args: bool = False,
    **options: Any,
) -> None:
    """Report failed attempts of this app to Sentry.

    `verdicts`: as for `app.on_job_end`. `schedules=False`: no cron monitors. `send_args=True`: events have the arguments of
    the job. `options` are those of `sentry_sdk.init`; without any, what the app or SENTRY_DSN has set up is used.
    """
    import sentry_sdk

    def start() -> None:
        if options or not sentry_sdk.get_client().is_active():
            sentry_sdk.init(**options)

    def report(end: JobEnd) -> None:
        sentry_sdk.capture_event(event_of(end, with_args=send_args))  # type: ignore[arg-type]
        sentry_sdk.flush(timeout=FLUSH_TIMEOUT_SECONDS)

    app.on_reporter_start(start)
    app.on_job_end(verdicts=verdicts)(report)
    app.hooks.reporter_stop.append(lambda: sentry_sdk.flush(timeout=FLUSH_TIMEOUT_SECONDS))
    if schedules:
        monitors = _Monitors(app)
        app.hooks.ticks.append(monitors.on_tick)
        app.hooks.scheduled_ends.append(monitors.on_end)


def event_of(end: JobEnd, *, with_args: bool = False) -> dict[str, Any]:
    """The event of one attempt."""
    exceptions, threads = _exceptions_of(end), read_dump(end.stack or "")
    event: dict[str, Any] = {
        "level": "error" if end.is_final else "warning",
        "logger": "pgworkers",
        "platform": "python",
        "timestamp": end.ended_at.isoformat(),
        "server_name": end.host,
        "transaction": end.task,
        "fingerprint": _fingerprint(end, exceptions),
        "exception": {"values": [_exception_value(one) for one in exceptions]},
        "tags": {
            "pgworkers.task": end.task,
            "pgworkers.queue": end.queue,
            "pgworkers.verdict": end.verdict,
            "pgworkers.attempt": str(end.attempt),
            "pgworkers.job": str(end.job),
            "pgworkers.state": end.state,
        },
        "contexts": {
            "job": {
                "type": "job",
                "job": end.job,
                "lease": end.lease,
                "attempt": f"{end.attempt} of {end.max_attempts}",
                "state": end.state,
                "retry in seconds": end.retry_in,
                "worker": end.worker,
                "exit status": end.exit_status,
                "duration": end.duration,
                "cpu": end.cpu,
                "peak rss": end.peak_rss,
            }
        },
        "extra": {"error": end.error, "output": end.output, "meta": end.meta},
    }
    if threads:
        event["threads"] = {"values": [_thread_value(nth, one) for nth, one in enumerate(threads)]}
    if with_args:
        event["extra"]["args"] = end.args
    return event


def _exceptions_of(end: JobEnd) -> list[TextException]:
    """The exceptions of a traceback; for a kill, one that is named by its verdict and has the stack of the dump."""
    found = read_traceback(end.traceback or "")
    if found:
        return found
    if end.verdict == Verdict.ERROR and end.error:
        name, _, value = end.error.partition(":")
        return [TextException(name.strip(), value.strip())]
    threads = read_dump(end.stack or "")
    current = next((one for one in threads if one.is_current), threads[-1] if threads else None)
    return [TextException(end.verdict, end.error or end.verdict, current.frames if current else [])]


def _fingerprint(end: JobEnd, exceptions: list[TextException]) -> list[str]:
    """Sentry's own grouping for exceptions, per task. Kills are one issue per task, verdict and place."""
    if end.verdict == Verdict.ERROR:
        return ["{{ default }}", end.task]
    frames = [frame for frame in exceptions[-1].frames if frame.is_of_app]
    return ["pgworkers", end.task, end.verdict, *(f"{one.file}:{one.function}" for one in frames[-1:])]


def _exception_value(exception: TextException) -> dict[str, Any]:
    module, _, name = exception.type.rpartition(".")
    value: dict[str, Any] = {
        "type": name or exception.type,
        "value": exception.value,
        "mechanism": {"type": "pgworkers", "handled": False},
    }
    if module:
        value["module"] = module
    if exception.frames:
        value["stacktrace"] = {"frames": [_frame_value(frame) for frame in exception.frames]}
    return value


def _thread_value(number: int, thread: TextThread) -> dict[str, Any]:
    return {
        "id": number,
        "name": thread.name,
        "current": thread.is_current,
        "crashed": thread.is_current,
        "stacktrace": {"frames": [_frame_value(frame) for frame in thread.frames]},
    }


def _frame_value(frame: TextFrame) -> dict[str, Any]:
    before, line, after = frame.source()
    value: dict[str, Any] = {
        "filename": frame.file,
        "abs_path": frame.file,
        "lineno": frame.line,
        "function": frame.function,
        "in_app": frame.is_of_app,
    }
    if line:
        value |= {"pre_context": before, "context_line": line, "post_context": after}
    return value


class _Monitors:
    """Check-ins: in progress when a schedule fires, ok or error when its job has ended for good."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._schedules: dict[str, ScheduleSpec] | None = None

    def on_tick(self, tick: TickReport) -> None:
        self._check_in(tick.schedule, tick.scope, tick.job, "in_progress")

    def on_end(self, end: JobEnd) -> None:
        if end.is_final:
            status = "ok" if end.verdict == Verdict.SUCCEEDED else "error"
            schedule, scope = str(end.meta["schedule"]), str(end.meta.get("scope") or "")
            self._check_in(schedule, scope, end.job, status, end.duration)

    def _check_in(
        self, schedule: str, scope: str, job: int, status: str, duration: float | None = None
    ) -> None:
        from sentry_sdk import flush
        from sentry_sdk.crons import capture_checkin

        config = monitor_config(self._spec_of(schedule))
        if config is None:
            return
        capture_checkin(
            monitor_slug=monitor_slug(schedule, scope),
            check_in_id=uuid.uuid5(_CHECK_INS, f"{schedule}/{scope}/{job}").hex,
            status=status,
            duration=duration,
            monitor_config=config,  # type: ignore[arg-type]
        )
        flush(timeout=FLUSH_TIMEOUT_SECONDS)

    def _spec_of(self, name: str) -> ScheduleSpec | None:
        if self._schedules is None:
            self._schedules = {spec.name: spec for spec in self._app.describe().schedules}
        return self._schedules.get(name)


def monitor_config(spec: ScheduleSpec | None) -> dict[str, Any] | None:
    """The schedule as Sentry describes it. None: Sentry cannot watch it, because it knows whole minutes only."""
    if spec is None:
        return None
    if spec.cron is not None and len(spec.cron.split()) == 5:
        schedule: dict[str, Any] = {"type": "crontab", "value": spec.cron}
    elif spec.every is not None and spec.every >= 60 and spec.every % 60 == 0:
        schedule = {"type": "interval", "value": int(spec.every // 60), "unit": "minute"}
    else:
        return None
    margin = CHECK_IN_MARGIN_MINUTES + round(spec.jitter / 60)
    return {"schedule": schedule, "timezone": spec.tz, "checkin_margin": margin}


def monitor_slug(schedule: str, scope: str) -> str:
    """The name of the monitor: small letters, digits, - and _."""
    text = f"{schedule}-{scope}" if scope else schedule
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")[:MAX_SLUG_CHARACTERS] or "schedule"
