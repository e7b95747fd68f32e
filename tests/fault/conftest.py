from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cgroups import NoCgroup, cgroup
from support.cluster_fixtures import cluster, own_cluster
from support.proxy import Proxy
from support.shifted_clock import NoCompiler, ShiftedClock

__all__ = ["cluster", "own_cluster"]


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    """Between masters and the test's database, if they are started with `dsn=proxy.dsn`."""
    with Proxy(dsn) as made:
        yield made


def _place(controller: str) -> Iterator[Path]:
    """Asked for before the cluster, so that it goes after the masters in it."""
    try:
        with cgroup(controller) as made:
            yield made
    except NoCgroup as why:
        pytest.skip(f"NOT TESTED: {why}")


@pytest.fixture
def wall(tmp_path: Path) -> ShiftedClock:
    """A wall clock that the test moves, for processes that are started with `**wall.environ`."""
    try:
        return ShiftedClock(tmp_path / "clock")
    except NoCompiler as why:
        pytest.skip(f"NOT TESTED: {why}")


@pytest.fixture
def freezer() -> Iterator[Path]:
    yield from _place("freezer")


@pytest.fixture
def few_pids() -> Iterator[Path]:
    yield from _place("pids")


@pytest.fixture
def little_cpu() -> Iterator[Path]:
    yield from _place("cpu")
