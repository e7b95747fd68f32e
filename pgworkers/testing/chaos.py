"""Runs a test again and again, each time with a fault at another point of its job: `pytest --pgworkers-chaos`.

The first run has no fault. It records the points that the job passes. Then follows one run for each fault, with a database
and a host of its own. The test's assertions must hold after every run. The first one that fails ends the series, and its
report names the fault. `worker/chaos` performs the faults.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.runner import runtestprotocol

from pgworkers.worker.chaos import ChaosPlan, RecordedPoint

#: A series ends after this long, whatever is left.
MAX_SERIES_SECONDS = 1800.0
#: Where a summary travels from a worker of pytest-xdist to the terminal.
PROPERTY = "pgworkers_chaos"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a series."""

    kind: str  # kill, steal, cut
    task: str
    index: int  # the point; 0: `delay` decides
    text: str  # for people
    delay: float = 0.0


@dataclass(slots=True)
class ChaosOptions:
    """What `@pytest.mark.pgworkers_chaos(...)` was given."""

    moments: int = 5
    max_runs: int = 100
    seed: int = 1


@dataclass(slots=True)
class ChaosRun:
    """One run of a test: the plan for its host, and what it noted."""

    directory: Path
    plan: ChaosPlan

    @property
    def environ(self) -> dict[str, str]:
        """Variables for the host. Written now, because the schema is known by then."""
        file = self.directory / "plan.json"
        file.write_bytes(msgspec.json.encode(self.plan))
        return {"PGWORKERS_CHAOS_PLAN": str(file)}

    def recorded(self) -> list[RecordedPoint]:
        try:
            lines = (self.directory / "points").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [msgspec.json.decode(line, type=RecordedPoint) for line in lines]

    @property
    def has_fired(self) -> bool:
        return (self.directory / "fired").exists()


RUN = pytest.StashKey[ChaosRun]()


def plan_faults(points: Sequence[RecordedPoint], options: ChaosOptions) -> tuple[list[Fault], int]:
    """The faults of a series, and how many the bound leaves out. The seed decides about moments and what is left out."""
    draw = random.Random(options.seed)
    faults: list[Fault] = []
    unique = {(point.task, point.index): point for point in points if point.index}
    for (task, index), point in sorted(unique.items()):
        where = f"{'' if point.is_sql else 'at '}{point.name} (point {index} of {task})"
        faults.append(Fault("kill", task, index, f"SIGKILL {where}"))
        faults.append(Fault("steal", task, index, f"its lease was stolen {where}"))
        if point.is_sql:
            faults.append(Fault("cut", task, index, f"its connection was cut {where}"))
    for task in sorted({point.task for point in points}):
        longest = max(point.seconds for point in points if point.task == task and not point.index)
        for _ in range(options.moments):
            delay = max(0.0005, draw.uniform(0.0, longest))
            faults.append(Fault("kill", task, 0, f"SIGKILL {delay * 1000:.1f} ms after {task} began", delay))
    left_out = max(0, len(faults) - options.max_runs)
    if left_out:
        chosen = set(draw.sample(range(len(faults)), options.max_runs))
        faults = [fault for nth, fault in enumerate(faults) if nth in chosen]
    return faults, left_out


def run_series(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run a marked test without a fault and then with each fault, and log one result for all."""
    marker = item.get_closest_marker("pgworkers_chaos")
    options = ChaosOptions(**(marker.kwargs if marker is not None else {}))
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    with tempfile.TemporaryDirectory(prefix="pgworkers-chaos-") as directory:
        reports = _run_all(item, options, Path(directory))
    # the teardown of what the next test does not need
    item.session._setupstate.teardown_exact(nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _run_all(item: pytest.Item, options: ChaosOptions, directory: Path) -> list[pytest.TestReport]:
    until = time.monotonic() + MAX_SERIES_SECONDS
    recording, reports = _run_once(item, directory / "0", ChaosPlan(""))
    if _is_bad(reports) or not (points := recording.recorded()):
        note = (
            "the run without a fault"
            if _is_bad(reports)
            else "no handler that takes a Ctx ran on pgworkers_host"
        )
        return _with_note(reports, f"chaos: {note}; no fault was tried")
    faults, left_out = plan_faults(points, options)
    reached = 0
    for nth, fault in enumerate(faults, 1):
        if time.monotonic() > until:
            left_out += len(faults) - nth + 1
            break
        plan = ChaosPlan("", fault.kind, fault.task, fault.index, fault.delay)
        run, reports = _run_once(item, directory / str(nth), plan)
        reached += run.has_fired
        if _is_bad(reports):
            return _with_note(
                reports,
                f"chaos: broken by this fault: {fault.text}; run {nth} of {len(faults)}, seed {options.seed}",
            )
    rest = f", {left_out} left out" if left_out else ""
    note = f"{reached} of {len(faults)} faults happened, the test held after each{rest} (seed {options.seed})"
    return _with_note(reports, note)


def _run_once(
    item: pytest.Item, directory: Path, plan: ChaosPlan
) -> tuple[ChaosRun, list[pytest.TestReport]]:
    """One run, with fixtures of its own. Those of the module and of the session stay."""
    directory.mkdir()
    plan.directory = str(directory)
    run = item.stash[RUN] = ChaosRun(directory, plan)
    item.user_properties.clear()
    keep: Any = item.parent
    return run, runtestprotocol(item, log=False, nextitem=keep)


def _is_bad(reports: Sequence[pytest.TestReport]) -> bool:
    return any(report.failed for report in reports)


def _with_note(reports: list[pytest.TestReport], note: str) -> list[pytest.TestReport]:
    for report in reports:
        if report.failed:
            report.sections.insert(0, ("pgworkers chaos", note))
        if report.when == "call":
            report.user_properties.append((PROPERTY, note))
    return reports


def summary_lines(reports: Sequence[pytest.TestReport]) -> list[str]:
    """One line for each test of a series."""
    return [
        f"{report.nodeid}: {text}"
        for report in reports
        for name, text in report.user_properties
        if name == PROPERTY
    ]
