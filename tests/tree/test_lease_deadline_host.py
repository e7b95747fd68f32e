"""Jobs that a host had claimed and not begun when it was frozen: none of them begins after its lease has ended."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.cluster import Cluster, wait_for
from support.ledger import read

#: Longer than it takes to freeze a host.
SLEEP = 8


@pytest.mark.parametrize("first", ["worker", "master"])
def test_a_host_that_was_frozen_begins_nothing_that_was_cancelled_meanwhile(
    cluster: Cluster, first: str
) -> None:
    """Every process of it is frozen while its worker has the order in its hands, as a paused virtual machine would be.

    Which of them runs first afterwards is chance. A master that does renews its leases before the worker looks.
    """
    frozen = cluster.start(queues="default:1", PGWORKERS_FAULT=f"after_order:sleep={SLEEP}")
    other = cluster.start(queues="other:1")
    [job] = cluster.enqueue("work")
    wait_for(lambda: frozen.titles("queue default 1/1 busy"), what="the order has arrived")
    processes = frozen.processes()
    for process in processes:
        process.suspend()
    stood = time.monotonic()
    assert not read(cluster.ledger), "it was quicker than this test"
    wait_for(lambda: cluster.state(job) == "ready", what=f"rescued by {other.pid}")
    assert cluster.db.execute("SELECT pgworkers.cancel(%s)", (job,)).fetchone() is not None
    assert cluster.state(job) == "cancelled"
    wait_for(lambda: time.monotonic() > stood + SLEEP, what="its next step is the handler")
    if first == "master":
        renewed = "SELECT renewed_at > clock_timestamp() - lease FROM pgworkers.host WHERE pid = %s"
        os.kill(frozen.pid, signal.SIGCONT)
        wait_for(lambda: cluster.db.execute(renewed, [frozen.pid]).fetchone() == (True,), what="renewed")
        time.sleep(0.1)  # it has received the answer
    for process in reversed(processes):  # the worker before its supervisor, which knows by then
        os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: frozen.titles("queue default 0/1 busy"), what="it has put the order away")
    assert not read(cluster.ledger), "a cancelled job began"
    assert (cluster.row(job)["state"], cluster.row(job)["lease"]) == ("cancelled", 1)
