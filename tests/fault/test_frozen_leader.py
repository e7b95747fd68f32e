"""A row of part C: a leader that the kernel froze."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.cluster import Cluster, wait_for
from support.ledger import audit, read
from support.time_bounds import BACKOFF, BUSY, T_HOST, T_LEAD

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_row_61_a_leader_frozen_by_the_kernel_is_replaced_and_cannot_act_when_it_thaws(
    freezer: Path, cluster: Cluster
) -> None:
    place = freezer
    cluster.declare(
        "@app.task\ndef slow_first(ctx: Ctx) -> None:\n"
        '    note(ctx, "START")\n    time.sleep(60.0 if ctx.lease == 1 else 0.0)\n    note(ctx, "END")'
    )
    frozen = cluster.start(queues="default:1", cgroup=place)
    wait_for(lambda: cluster.leader() is frozen)
    [job] = cluster.enqueue("slow_first")
    wait_for(lambda: read(cluster.ledger))
    other = cluster.start(queues="default:1")
    time.sleep(1.5)  # it has renewed without a gap
    switch = place / "freezer.state"
    switch.write_text("FROZEN")
    try:
        wait_for(lambda: switch.read_text().strip() == "FROZEN")
        wait_for(lambda: cluster.leader() is other, timeout=T_LEAD + BUSY, what="another host leads")
        cluster.until(job, "succeeded", timeout=T_HOST + BACKOFF + BUSY)
    finally:
        switch.write_text("THAWED")
    wait_for(lambda: "no longer leads" in frozen.log(), what="it knows that it was deposed")
    wait_for(lambda: not frozen.titles(f"#{job} "), what="the stale handler is gone")
    assert cluster.leader() is other
    assert cluster.row(job)["lease"] == 2
    assert audit(cluster.db, cluster.ledger, [job]) == []
    assert frozen.terminate() == 0
