"""A worker gives back what a job allocated, and has nothing that its handler did not ask for."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from supervisor_harness import HarnessWorker, SupervisorHarness, until

APP = """
@app.task
def at_once() -> int: return len(bytearray(500_000_000))

@app.task
def in_pieces() -> int: return len([str(n) * 10 for n in range(2_000_000)])

@app.task
def in_circles() -> None:
    kept = []
    for n in range(600_000):
        ring = [n]
        ring.append(ring)
        kept.append(ring)

@app.task
def modules() -> list[str]: return sorted(sys.modules)
"""
SLACK = 24 << 20


def resident(worker: HarnessWorker) -> int:
    return int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("task", ["at_once", "in_pieces", "in_circles"])
def test_what_a_job_allocated_goes_back_to_the_kernel(tmp_path: Path, task: str) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        before = resident(worker)
        report = worker.run(1, task)
        assert report.outcome == "done"
        assert report.peak_rss > before + 2 * SLACK, "nothing was tested"
        until("the memory to be given back", lambda: resident(worker) < before + SLACK)
        assert worker.run(2, "modules").peak_rss < before + SLACK, "a job is told its own peak, not another's"


def test_nothing_heavy_is_imported_that_the_handler_did_not_ask_for(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        found = set(msgspec.json.decode(harness.worker().run(1, "modules").result))
        heavy = {"psycopg", "psycopg_binary", "click", "rich", "prometheus_client", "numpy", "http.server"}
        assert sorted(heavy & found) == []
