"""The `forest` fixtures, shared by the tests of tree and fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import OwnServer
from support.tree import Forest


@pytest.fixture
def forest(dsn: str, tmp_path: Path) -> Iterator[Forest]:
    """Masters on a database of this test's own."""
    grown = Forest(dsn, tmp_path)
    try:
        yield grown
    finally:
        grown.close()


@pytest.fixture
def own_forest(own_server: OwnServer, tmp_path: Path) -> Iterator[Forest]:
    """Masters on a server that the test may crash."""
    grown = Forest(own_server.dsn, tmp_path)
    try:
        yield grown
    finally:
        grown.close()
