"""Row 97: hundreds of thousands of jobs at once, a third of them due at the same moment; the others do not notice."""

from __future__ import annotations

import time

import pytest
from support.bounds import BUSY, P, S
from support.ledger import audit
from support.tree import Forest, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

READY, DUE = 200_000, 100_000
#: How old the oldest transaction of a host is; it holds none open, so this is how long its longest statement takes.
OLDEST = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'pgworkers %' AND state <> 'idle'
"""


def test_row_97_a_flood_in_one_queue_does_not_delay_the_others(forest: Forest) -> None:
    forest.start(queues="default:1,flood:1")
    # Nobody knows the task, so nothing of it is claimed: they lie in the way, and stay.
    forest.db.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'flood', 'unknown' FROM generate_series(1, %s)",
        [READY],
    )
    forest.db.execute(
        "INSERT INTO pgworkers.job (queue, task, state, run_at)"
        " SELECT 'flood', 'unknown', 'scheduled', now() FROM generate_series(1, %s)",
        [DUE],
    )
    oldest, jobs, waits = 0.0, [], []

    def promoted() -> bool:
        nonlocal oldest
        (age,) = forest.db.execute(OLDEST).fetchone() or (0.0,)
        oldest = max(oldest, age)
        began = time.monotonic()
        [job] = forest.enqueue("work")
        jobs.append(job)
        wait_for(
            lambda: forest.state(job) == "succeeded", timeout=P + S + BUSY, what="another queue is served"
        )
        waits.append(time.monotonic() - began)
        left = forest.db.execute(
            "SELECT EXISTS (SELECT FROM pgworkers.job WHERE state = 'scheduled')"
        ).fetchone()
        return left == (False,)

    wait_for(promoted, timeout=120, what="what was due is ready, batch by batch")
    assert len(waits) > 3, "it was over too soon: nothing was seen"
    assert oldest < S + 1, f"a transaction of {oldest:.2f} s"
    (count,) = forest.db.execute("SELECT count(*) FROM pgworkers.job WHERE state = 'ready'").fetchone() or (
        0,
    )
    assert count == READY + DUE
    forest.db.execute("DELETE FROM pgworkers.job")
    assert audit(forest.db, forest.ledger, jobs) == []
