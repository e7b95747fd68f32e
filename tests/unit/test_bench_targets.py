"""Each bar names measurements that a suite makes. A misspelt name would be reported as NOT MEASURED in every run."""

from __future__ import annotations

import pytest
from bench import suites, targets
from bench.measurement import Measure
from bench.targets import Bar

PEERS = [measure for phase in suites.PHASES for measure in suites.peers(phase)]


@pytest.mark.parametrize(
    ("bar", "measures"),
    [(bar, PEERS) for bar in targets.BARS] + [(bar, suites.quick()) for bar in targets.QUICK],
    ids=lambda value: value.measure if isinstance(value, Bar) else "",
)
def test_a_bar_is_of_what_is_measured(bar: Bar, measures: list[Measure]) -> None:
    made = {measure.key for measure in measures}
    named = {what.rpartition("|")[0] for what in (bar.ours, bar.theirs) if what}
    assert named <= made


def test_a_measurement_has_a_name_of_its_own() -> None:
    keys = [measure.key for measure in PEERS]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("measure", "bar", "aim"),
    [
        ("drain no-op, x graphile-worker batched", ">= 0.9", ">= 1.2"),
        ("drain no-op, x celery", ">= 20", ""),
        ("call to start p50, idle, x graphile-worker", "<= 1.0", "<= 0.75"),
        ("call to start p99, idle", "<= 6", ""),
        ("pickup p50 while 7 other queues are busy", "<= 5", "<= 2"),
        ("enqueue one per commit, x pgbench insert", ">= 0.5", ">= 0.7"),
        ("enqueue in bulk, x COPY", ">= 0.5", ">= 0.7"),
        ("8 enqueuers, notifications on / off", ">= 0.9", ">= 1.0"),
        ("CPU: 200 jobs of 50 ms, of bare forks", ">= 97", ">= 99"),
        ("PSS per extra idle worker, app imports numpy", "<= 6", "<= 3"),
        ("PSS of the idle tree, 2 workers", "<= 70", "<= 50"),
        ("a process per job (max_jobs=1), x rq", ">= 2.5", ">= 4"),
        ("backlog 1,000,000 against 10,000", ">= 0.95", ">= 1.0"),
        ("pinned xmin, last 20 s / first 20 s of 2 min", ">= 0.9", ">= 1.0"),
        ("longest wait while a worker of the queue is idle", "<= 50", ""),
        ("CPU of a host with 8 idle workers", "< 0.5", ""),
        ("statements of an idle host", "< 2", ""),
        ("64 workers, 1 ms jobs: CPU of the master", "< 100", ""),
        ("64 workers, 1 ms jobs: loop lag p99", "< 50", ""),
    ],
)
def test_the_bars_are_those_of_the_project(measure: str, bar: str, aim: str) -> None:
    (found,) = (one for one in targets.BARS if one.measure == measure)
    assert (found.bar, found.aim) == (bar, aim)
