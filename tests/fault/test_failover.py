"""Rows 44 to 46: a standby takes over under load; the figures are in docs/reliability/runs/failover.md."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from many_hosts import failover, split_brain

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path that the server's account can reach: it holds sockets."""
    made = Path(
        tempfile.mkdtemp(prefix="failover-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    )
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_row_44_asynchronous_failover_loses_only_what_postgres_lost(home: Path) -> None:
    findings, figures = failover.failover(home, synchronous=False)
    assert [one for one in findings if not one.holds] == [], figures


def test_row_45_synchronous_failover_loses_nothing(home: Path) -> None:
    findings, figures = failover.failover(home, synchronous=True)
    assert [one for one in findings if not one.holds] == [], figures
    assert figures["lost"] == 0


def test_row_46_two_primaries_and_a_host_that_comes_over_with_leases_of_the_same_number(home: Path) -> None:
    assert split_brain.split(home) == []
