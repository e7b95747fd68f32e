"""Events for Sentry out of texts: tracebacks, dumps, and whatever else a handler may leave behind."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any

import pytest

from pgworkers.hooks import JobEnd
from pgworkers.integrations.sentry import event_of, monitor_config, monitor_slug
from pgworkers.integrations.traceback_frames import read_dump, read_traceback
from pgworkers.specs import ScheduleSpec

DUMP = """Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007e (most recent call first):
  File "/srv/shop/pdf.py", line 12 in draw
  File "/srv/shop/app.py", line 40 in render
  ...
"""


def end(**fields: Any) -> JobEnd:
    values = {"verdict": "error", "state": "dead"} | fields
    return JobEnd(
        job=7,
        task="render",
        queue="default",
        attempt=1,
        max_attempts=3,
        lease=1,
        ended_at=datetime.now(UTC),
        **values,
    )


def test_a_real_traceback_is_read_back() -> None:
    try:
        try:
            raise KeyError("a\nb: c")
        except KeyError as error:
            raise ValueError("two: parts") from error
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    first, second = read_traceback(text)
    assert (first.type, second.type, second.value) == ("KeyError", "ValueError", "two: parts")
    assert second.frames[-1].function == "test_a_real_traceback_is_read_back"
    assert second.frames[-1].source()[1].strip() == 'raise ValueError("two: parts") from error'


def test_a_dump_has_the_current_thread_last_call_last() -> None:
    other, current = read_dump(DUMP)
    assert (other.is_current, current.is_current) == (False, True)
    assert [frame.function for frame in current.frames] == ["render", "draw"]
    event = event_of(end(verdict="crash", error="the worker was ended by SIGSEGV", stack=DUMP))
    assert event["fingerprint"] == ["pgworkers", "render", "crash", "/srv/shop/pdf.py:draw"]
    assert len(event["threads"]["values"]) == 2
    assert event["exception"]["values"][0]["stacktrace"]["frames"][-1]["lineno"] == 12


@pytest.mark.parametrize(
    "text", ["", "\0", "Traceback (most recent call last):\n", '  File "x", line 9' * 1000, "| + x"]
)
def test_any_text_makes_an_event(text: str) -> None:
    event = event_of(end(traceback=text, stack=text, error=text, output=text))
    assert event["exception"]["values"]
    assert event["tags"]["pgworkers.verdict"] == "error"


def test_arguments_are_sent_only_on_request() -> None:
    secret = end(args={"token": "s3cret"})
    assert "s3cret" not in str(event_of(secret))
    assert event_of(secret, with_args=True)["extra"]["args"] == {"token": "s3cret"}


def test_sentry_watches_schedules_of_whole_minutes() -> None:
    cron = monitor_config(ScheduleSpec(name="n", task="t", cron="0 3 * * *", tz="Europe/Berlin", jitter=120))
    assert cron == {
        "schedule": {"type": "crontab", "value": "0 3 * * *"}, "timezone": "Europe/Berlin", "checkin_margin": 7,
    }  # fmt: skip
    every = monitor_config(ScheduleSpec(name="n", task="t", every=300.0))
    assert every is not None
    assert every["schedule"] == {"type": "interval", "value": 5, "unit": "minute"}
    assert monitor_config(ScheduleSpec(name="n", task="t", every=5.0)) is None
    assert monitor_config(ScheduleSpec(name="n", task="t", cron="* * * * * *")) is None
    assert monitor_slug("Nightly Report (EU)", "Tenant 7") == "nightly-report-eu-tenant-7"
