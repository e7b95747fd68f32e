"""What an asynchronous failover does to a host: its claim is gone, and id and lease are given again, to another job."""

from __future__ import annotations

import pytest
from support.cluster import Cluster, wait_for
from support.ledger import read


@pytest.mark.excused("I5", "the row of the first execution is lost with its timeline")
@pytest.mark.excused("I6", "the handler of the lost claim is still being stopped when the new job begins")
def test_a_job_that_has_the_number_of_a_lost_one_ends_with_its_own_result(cluster: Cluster) -> None:
    cluster.start(queues="default:2")
    [old] = cluster.enqueue("gate", args={"value": "old"})
    wait_for(lambda: len(read(cluster.ledger)) == 1, what="the first job runs")
    with cluster.db.transaction():  # the new primary never received it
        cluster.db.execute("DELETE FROM pgworkers.job WHERE id = %s", [old])
        cluster.db.execute("SELECT setval(pg_get_serial_sequence('pgworkers.job', 'id'), %s, false)", [old])
        assert cluster.enqueue("gate", args={"value": "new"}) == [old]
        assert cluster.db.execute("SELECT lease FROM pgworkers.job").fetchone() == (0,)
    claimed = "SELECT lease FROM pgworkers.job WHERE state = 'running'"
    wait_for(lambda: cluster.db.execute(claimed).fetchone(), what="the second job is claimed")
    cluster.open_gate()
    assert cluster.until(old, "succeeded")["result"] == "new"
    starts = [entry.lease for entry in read(cluster.ledger) if entry.kind == "START"]
    assert starts == [1, 2], "the number of the lost claim is given to no second execution"
