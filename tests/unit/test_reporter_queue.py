"""The master's queue of reports: bounded, and readable whatever a handler left behind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec

from pgworkers.events import EventBus, ReportsDropped
from pgworkers.hooks import JobEnd
from pgworkers.master import reporter as reporter_module
from pgworkers.master.reporter import MAX_QUEUED_BYTES, MAX_QUEUED_REPORTS, Reporter
from pgworkers.settings import Settings
from pgworkers.supervisor.reporter_messages import EndMessage


def made(events: EventBus) -> Reporter:
    return Reporter(
        host_id="host", config="app.py", settings=Settings(), boot_settings=dict, events=events, spared=set()
    )


def end(**texts: Any) -> JobEnd:
    return JobEnd(
        job=7, task="render", queue="default", attempt=1, max_attempts=1, verdict="error", state="dead", lease=1,
        ended_at=datetime.now(UTC), **texts,
    )  # fmt: skip


def decoded(body: bytes) -> JobEnd:
    return msgspec.json.decode(body, type=EndMessage).end


def test_arguments_and_meta_pass_through() -> None:
    reporter = made(EventBus())
    reporter._report_end(end(error="x"), args='{"n": 1, "s": "\\ud83d\\ude00"}', meta='{"why": []}')
    found = decoded(reporter._queue[0])
    assert (found.args, found.meta, found.error) == ({"n": 1, "s": "\U0001f600"}, {"why": []}, "x")


def test_texts_that_have_no_json_are_cleaned() -> None:
    reporter = made(EventBus())
    reporter._report_end(end(error="a\ud800b", traceback="\udcff", output="fine"), args="{}", meta=None)
    found = decoded(reporter._queue[0])
    assert found.error is not None
    assert found.error.startswith("a")
    assert found.error.endswith("b")
    assert found.output == "fine"


def test_what_does_not_fit_is_dropped_and_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(reporter_module, "DROPPED_LINE_SECONDS", 0.0)
    events = EventBus()
    dropped: list[int] = []
    events.subscribe(lambda event: dropped.append(event.count), ReportsDropped)

    async def fill() -> Reporter:
        reporter = made(events)
        for _ in range(MAX_QUEUED_REPORTS + 5):
            reporter._report_end(end())
        big = made(events)
        for _ in range(20):
            big._report_end(end(output="x" * (MAX_QUEUED_BYTES // 10)))
        assert big._queued_bytes <= MAX_QUEUED_BYTES
        assert 0 < len(big._queue) < 10
        big.close()
        reporter.close()
        return reporter

    reporter = asyncio.run(fill())
    assert len(reporter._queue) == MAX_QUEUED_REPORTS
    assert sum(dropped) >= 5 + 10
