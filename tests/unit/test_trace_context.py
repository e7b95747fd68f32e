"""Trace context: the format, what is carried, and that nothing is loaded for it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pgworkers import App, Ctx, UsageError
from pgworkers.observe import tracing

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("text", [GOOD, GOOD[:-2] + "00", "cc" + GOOD[2:] + "-what-will-come"])
def test_good_ones(text: str) -> None:
    found = tracing.parse_traceparent(text)
    assert found is not None
    assert found[:2] == (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7)
    assert tracing.traceparent_of({"traceparent": text}) == text


@pytest.mark.parametrize(
    "text",
    [
        "", None, 7, [], GOOD.upper(), GOOD + "-more", "ff" + GOOD[2:], GOOD[:-1], " " + GOOD, GOOD + "\n",
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        "01" + GOOD[2:] + "-" + "x" * 1000,
    ],
)  # fmt: skip
def test_bad_ones(text: Any) -> None:
    assert tracing.parse_traceparent(text) is None
    assert tracing.traceparent_of({"traceparent": text}) is None
    with pytest.raises(UsageError, match=r"traceparent: .* nothing was enqueued"):
        tracing.require_traceparent(text)


def test_using_says_it_and_the_context_has_it() -> None:
    app = App()
    app.queue("default")

    @app.task
    def work(ctx: Ctx) -> None: ...

    new = work.using(traceparent=GOOD, meta={"why": "x"}).prepare().job
    assert json.loads(new.meta_json or "") == {"why": "x", "traceparent": GOOD}
    with pytest.raises(UsageError, match="traceparent"):
        work.using(traceparent="nonsense")
    with pytest.raises(UsageError, match="meta"):
        work.using(traceparent=GOOD, meta=[1])  # type: ignore[arg-type]
    assert work.prepare().job.meta_json is None
    assert Ctx.for_test(meta={"traceparent": GOOD}).traceparent == GOOD
    assert Ctx.for_test(meta={"traceparent": "?"}).traceparent is None


def test_nothing_is_imported_for_it() -> None:
    """Also where OpenTelemetry is installed: an app that uses spans has imported it."""
    code = (
        "import sys, pgworkers, pgworkers.worker.main, pgworkers.master.main, pgworkers.cli.jobs.command\n"
        "app = pgworkers.App(); app.queue('default')\n"
        "@app.task\n"
        "def work() -> None: ...\n"
        "work.prepare()\n"
        "from pgworkers.observe import tracing\n"
        "assert tracing.start_attempt_span('a', 'b', 1, 1, {}) is None\n"
        "tracing.flush()\n"
        "sys.exit([name for name in sys.modules if 'opentelemetry' in name] or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


SPANS = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import TraceState
from pgworkers import App
from pgworkers.observe import tracing

exported = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exported))
trace.set_tracer_provider(provider)
app = App()
app.queue("default")

@app.task
def work() -> None: ...

assert work.prepare().job.meta_json is None  # no current span, nothing to carry
with trace.get_tracer("web").start_as_current_span("request") as request:
    meta = json.loads(work.using(meta={"why": "x"}).prepare().job.meta_json)
    assert meta["traceparent"].split("-")[1] == f"{request.get_span_context().trace_id:032x}", meta
    assert meta["why"] == "x"
    explicit = work.using(traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01").prepare().job.meta_json
    assert json.loads(explicit)["traceparent"].startswith("00-aaaa")
    with tracing.enqueue_span("work") as span:
        inner = json.loads(tracing.with_current_span(None))
        span.set_job(7, "default", True)
producer = next(s for s in exported.get_finished_spans() if s.name == "enqueue work")
assert producer.kind.name == "PRODUCER" and producer.attributes["pgworkers.job"] == 7
assert inner["traceparent"].split("-")[2] == f"{producer.context.span_id:016x}"

state = {**inner, "tracestate": "vendor=1,other=2"}
consumer = tracing.start_attempt_span("work", "default", 7, 2, state)
with trace.get_tracer("lib").start_as_current_span("inside"):
    pass
consumer.end("error", "ValueError: no", False)
assert not trace.get_current_span().get_span_context().is_valid
by_name = {s.name: s for s in exported.get_finished_spans()}
attempt, inside = by_name["attempt work"], by_name["inside"]
assert attempt.kind.name == "CONSUMER"
assert attempt.context.trace_id == producer.context.trace_id
assert attempt.parent.span_id == producer.context.span_id
assert [link.context.span_id for link in attempt.links] == [producer.context.span_id]
assert attempt.context.trace_state.get("vendor") == "1"
assert inside.parent.span_id == attempt.context.span_id
assert attempt.attributes["pgworkers.verdict"] == "error" and attempt.attributes["pgworkers.attempt"] == 2
assert attempt.status.status_code.name == "ERROR" and attempt.status.description == "ValueError: no"

alone = tracing.start_attempt_span("work", "default", 8, 1, {"traceparent": "nonsense", "tracestate": 7})
alone.end("succeeded", None, True)
last = exported.get_finished_spans()[-1]
assert last.parent is None and not last.links and last.status.status_code.name == "UNSET"
"""


def test_spans_with_the_real_sdk() -> None:
    pytest.importorskip(
        "opentelemetry.sdk", reason="NOT TESTED: opentelemetry-sdk is not installed (scripts/setup dev)"
    )
    done = subprocess.run(
        [sys.executable, "-c", SPANS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_flush_that_hangs_is_bounded() -> None:
    pytest.importorskip(
        "opentelemetry.sdk", reason="NOT TESTED: opentelemetry-sdk is not installed (scripts/setup dev)"
    )
    code = (
        "import time, opentelemetry.trace as trace\n"
        "from pgworkers.observe import tracing\n"
        "class Hanging(trace.NoOpTracerProvider):\n"
        "    def force_flush(self, timeout): time.sleep(600)\n"
        "trace.set_tracer_provider(Hanging())\n"
        "tracing.SPAN_FLUSH_TIMEOUT_SECONDS = 0.1\n"
        "tracing.flush()\n"
        "class Broken:\n"
        "    def __getattr__(self, name): raise RuntimeError(name)\n"
        "import sys; trace.get_tracer = lambda *a: Broken()\n"
        "assert tracing.start_attempt_span('a', 'b', 1, 1, {}) is None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
