"""Spans of real workers, exported by the real SDK; and workers without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster, wait_for
from support.command import Command

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
APP = """
import os, sys, time
from pgworkers import App, Ctx

app = App()
app.queue("default", workers=2)

@app.on_worker_start
def trace() -> None:
    if "SPANS" not in os.environ:
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    provider = TracerProvider()
    out = open(os.environ["SPANS"] + f".{os.getpid()}", "a")
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=600_000))  # only a flush writes
    trace.set_tracer_provider(provider)

@app.on_worker_stop
def bye() -> None:
    time.sleep(0.3)
    open(f"bye.{os.getpid()}", "w").close()

@app.task
def work(ctx: Ctx) -> str | None:
    follow.enqueue()
    return ctx.traceparent

@app.task
async def follow(ctx: Ctx) -> str | None:
    from opentelemetry import trace

    with trace.get_tracer("handler").start_as_current_span("inside"):
        return ctx.traceparent

@app.task(retries=0)
def fail() -> None:
    raise ValueError("on purpose")

@app.task
def loaded() -> list[str]:
    return [name for name in sys.modules if "opentelemetry" in name]
"""


def spans(directory: Path) -> list[dict[str, Any]]:
    lines = [line for path in directory.glob("spans.*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_one_trace_from_the_enqueue_to_the_last_handler(cluster: Cluster) -> None:
    pytest.importorskip(
        "opentelemetry.sdk", reason="NOT TESTED: opentelemetry-sdk is not installed (scripts/setup dev)"
    )
    cluster.app.write_text(APP)
    master = cluster.start(SPANS=str(cluster.directory / "spans"))
    job = cluster.enqueue("work", meta=json.dumps({"traceparent": PARENT, "why": "a test"}))[0]
    bad = cluster.enqueue("fail")[0]
    assert cluster.until(job, "succeeded")["result"] == PARENT
    cluster.until(bad, "dead")
    follower = wait_for(
        lambda: cluster.db.execute("SELECT id FROM pgworkers.history WHERE task = 'follow'").fetchone()
    )[0]
    assert master.terminate() == 0
    found = {span["name"]: span for span in spans(cluster.directory)}
    assert set(found) == {"attempt work", "enqueue follow", "attempt follow", "inside", "attempt fail"}
    _, trace, parent, _ = PARENT.split("-")

    def of(name: str) -> tuple[str, str, str]:
        span = found[name]
        return span["context"]["trace_id"], span["context"]["span_id"], span["parent_id"]

    assert of("attempt work")[::2] == (f"0x{trace}", f"0x{parent}")
    assert found["attempt work"]["kind"] == "SpanKind.CONSUMER"
    assert found["attempt work"]["links"][0]["context"]["span_id"] == f"0x{parent}"
    assert found["attempt work"]["attributes"]["pgworkers.verdict"] == "succeeded"
    for child, above in (
        ("enqueue follow", "attempt work"),
        ("attempt follow", "enqueue follow"),
        ("inside", "attempt follow"),
    ):
        assert of(child)[::2] == (f"0x{trace}", of(above)[1]), child
    assert found["enqueue follow"]["attributes"]["pgworkers.job"] == follower
    assert found["attempt fail"]["status"] == {
        "status_code": "ERROR",
        "description": "ValueError: on purpose",
    }
    assert found["attempt fail"]["parent_id"] is None
    told = Command(cluster.directory, PGWORKERS_DSN=cluster.dsn)("jobs", "show", str(job)).out
    assert f"  trace      {PARENT}\n" in told
    assert '  meta       {"why":"a test"}\n' in told


def test_workers_without_it_load_nothing(cluster: Cluster) -> None:
    cluster.app.write_text(APP)
    master = cluster.start()
    job = cluster.enqueue("loaded", meta=json.dumps({"traceparent": PARENT}))[0]
    assert cluster.until(job, "succeeded")["result"] == []
    workers = {f"bye.{pid}" for pid in master.worker_pids()}
    assert master.terminate() == 0
    assert {path.name for path in cluster.directory.glob("bye.*")} == workers, "a drain cut stop hooks short"


KILLED = """
@app.on_reporter_start
def trace_in_the_reporter() -> None:
    trace()

@app.task(timeout=0.3, retries=0)
def stuck() -> None:
    sum(__import__("itertools").repeat(1))
"""


def test_the_reporter_ends_the_span_of_a_killed_attempt(cluster: Cluster, tmp_path: Path) -> None:
    cluster.app.write_text(APP + KILLED)
    master = cluster.start(SPANS=str(tmp_path / "spans"))
    (job,) = cluster.enqueue("stuck", meta=json.dumps({"traceparent": PARENT}))
    cluster.until(job, "dead")
    (failed,) = cluster.enqueue("fail")
    cluster.until(failed, "dead")
    master.terminate()
    spans = [json.loads(line) for path in tmp_path.glob("spans.*") for line in path.read_text().splitlines()]
    (span,) = [span for span in spans if span["name"] == "attempt stuck"]
    assert span["attributes"]["pgworkers.verdict"] == "timeout"
    assert span["attributes"]["pgworkers.job"] == job
    assert span["status"]["status_code"] == "ERROR"
    assert span["context"]["trace_id"].removeprefix("0x") in PARENT
    assert span["parent_id"].removeprefix("0x") in PARENT
    assert span["end_time"] > span["start_time"]
    assert len([span for span in spans if span["name"] == "attempt fail"]) == 1, "its worker has ended it"
