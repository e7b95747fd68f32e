"""A database that takes longer for the ends of jobs than they take: nothing that was executed is executed again."""

from __future__ import annotations

import pytest
from support.cluster import Cluster, wait_for
from support.ledger import audit, read
from support.time_bounds import BUSY, D, S

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

JOBS = 1500
#: Fifty in the time that a statement may take, and the host sends up to a hundred at once.
TRIGGER = """
CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$;
CREATE TRIGGER of_the_user BEFORE INSERT ON pgworkers.history FOR EACH ROW EXECUTE FUNCTION public.dawdle();
"""


def test_ends_that_take_longer_than_a_statement_may_are_all_written_once(cluster: Cluster) -> None:
    cluster.db.execute(TRIGGER)
    master = cluster.start(
        queues="default:2", PGWORKERS_FINISH_BATCH_SIZE="100", PGWORKERS_CLAIM_BATCH_SIZE="100"
    )
    jobs = cluster.enqueue("work", JOBS)
    wait_for(lambda: _ended(cluster) >= 100, timeout=60, what="the first ends")
    wait_for(
        lambda: len(_ran(cluster)) - _ended(cluster) < 100, timeout=120, what="the host to wait for its ends"
    )
    assert master.log().count("could not be written within") == 1, "it is said once"
    master.terminate(timeout=2 * D + 4 * S + BUSY)
    ran = _ran(cluster)
    assert len(ran) < JOBS, "not all was claimed: the host waits for its ends"
    assert _ended(cluster) == len(ran), "all that ran is written before the host leaves"
    cluster.db.execute("DROP TRIGGER of_the_user ON pgworkers.history")
    cluster.start(queues="default:2")
    cluster.until_all_ended()
    assert cluster.counts() == {"succeeded": JOBS}
    starts = sorted(entry.job for entry in read(cluster.ledger) if entry.kind == "START")
    assert starts == sorted(jobs), "none ran twice"
    assert audit(cluster.db, cluster.ledger, jobs) == []


def _ran(cluster: Cluster) -> set[int]:
    return {entry.job for entry in read(cluster.ledger)}


def _ended(cluster: Cluster) -> int:
    return cluster.counts().get("succeeded", 0)
