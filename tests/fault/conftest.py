from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.forests import forest, own_forest
from support.proxy import Proxy

__all__ = ["forest", "own_forest"]


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    """Between masters and the test's database, if they are started with `dsn=proxy.dsn`."""
    with Proxy(dsn) as made:
        yield made
