"""A duty goes on until nothing is left, and asks first whether it may."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pgworkers.events import Facts
from pgworkers.job.claim import Wants, claim
from pgworkers.master.duties import RESCUE_BATCH, Duties
from pgworkers.master.line import Line
from pgworkers.postgres.statements import run
from pgworkers.settings import Settings

Db = psycopg.Connection[Any]


def perform(dsn: str, duty: str, *, may_rescue: bool) -> int:
    async def once() -> int:
        line = Line("duty", dsn, Settings(), Facts())
        try:
            return await Duties(str(uuid4()), line, Facts(), Settings(), lambda: may_rescue).perform(duty)
        finally:
            await line.close()

    return asyncio.run(once())


@pytest.mark.parametrize(("may_rescue", "left"), [(True, 0), (False, 2 * RESCUE_BATCH + 1)])
def test_one_sweep_takes_everything_back_from_a_lost_host_but_not_after_a_gap(
    db: Db, dsn: str, may_rescue: bool, left: int
) -> None:
    count = 2 * RESCUE_BATCH + 1
    db.execute("SELECT pgworkers.enqueue('work') FROM generate_series(1, %s)", [count])
    lost = str(uuid4())  # without a row of its own: gone at once
    held = run(db, "pgworkers", claim(lost, [Wants("default", count)], ["work"]))
    assert len(held) == count
    assert perform(dsn, "rescue", may_rescue=may_rescue) == count - left
    assert db.execute("SELECT count(*) FROM pgworkers.job WHERE state = 'running'").fetchone() == (left,)
    assert db.execute("SELECT count(*) FROM pgworkers.attempt").fetchone() == (count - left,)
