"""Rows of part C: a leader that the kernel froze, a host whose wall clock lies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from support.bounds import BACKOFF, BUSY, T_HOST, T_LEAD
from support.ledger import audit, read
from support.tree import Forest, wait_for

pytestmark = pytest.mark.timeout(300)

#: Loaded by every Python process of the host before anything else; `FAKE_CLOCK` is the shift in seconds, or "jump".
LIAR = """
import os, time, itertools
_real, _said = time.time, os.environ.get("FAKE_CLOCK")
if _said:
    _turn = itertools.count()
    def _shift():
        return (-86400.0, 0.0, 86400.0)[next(_turn) % 3] if _said == "jump" else float(_said)
    time.time = lambda: _real() + _shift()
    time.time_ns = lambda: int(time.time() * 1e9)
"""


@pytest.mark.long
def test_row_61_a_leader_frozen_by_the_kernel_is_replaced_and_cannot_act_when_it_thaws(
    freezer: Path, forest: Forest
) -> None:
    place = freezer
    forest.declare(
        "@app.task\ndef slow_first(ctx: Ctx) -> None:\n"
        '    note(ctx, "START")\n    time.sleep(60.0 if ctx.lease == 1 else 0.0)\n    note(ctx, "END")'
    )
    frozen = forest.start(queues="default:1", cgroup=place)
    wait_for(lambda: forest.leader() is frozen)
    [job] = forest.enqueue("slow_first")
    wait_for(lambda: read(forest.ledger))
    other = forest.start(queues="default:1")
    time.sleep(1.5)  # it has renewed without a gap
    switch = place / "freezer.state"
    switch.write_text("FROZEN")
    try:
        wait_for(lambda: switch.read_text().strip() == "FROZEN")
        wait_for(lambda: forest.leader() is other, timeout=T_LEAD + BUSY, what="another host leads")
        forest.until(job, "succeeded", timeout=T_HOST + BACKOFF + BUSY)
    finally:
        switch.write_text("THAWED")
    wait_for(lambda: "no longer leads" in frozen.log(), what="it knows that it was deposed")
    wait_for(lambda: not frozen.titles(f"#{job} "), what="the stale handler is gone")
    assert forest.leader() is other
    assert forest.row(job)["lease"] == 2
    assert audit(forest.db, forest.ledger, [job]) == []
    assert frozen.terminate() == 0


#: A job so long that the sweep looks at its host several times, and a candidate at its leader.
SWEPT = T_HOST + T_LEAD


@pytest.mark.long
@pytest.mark.parametrize("shift", ["86400", "-86400", "3600", "jump"])
def test_row_70_the_wall_clock_of_a_host_decides_nothing(forest: Forest, tmp_path: Path, shift: str) -> None:
    (tmp_path / "liar").mkdir()
    (tmp_path / "liar" / "sitecustomize.py").write_text(LIAR)
    forest.declare(
        "@app.task\ndef clock(ctx: Ctx) -> float:\n"
        '    note(ctx, "START")\n    note(ctx, "END")\n    return time.time()'
    )
    path = os.pathsep.join(filter(None, [str(tmp_path / "liar"), os.environ.get("PYTHONPATH")]))
    honest = forest.start(queues="default:2")
    wait_for(lambda: forest.leader() is honest)  # it judges who is lost, and never itself
    liar = forest.start(queues="default:2,lies:1", PYTHONPATH=path, FAKE_CLOCK=shift)
    [clock] = forest.enqueue("clock", queue="lies")
    said = forest.until(clock, "succeeded")["result"]
    if shift != "jump":
        assert abs(said - time.time() - float(shift)) < 600, "the clock did not lie: nothing was tested"
    jobs = forest.enqueue("work", 30, args={"seconds": 0.05})
    [later] = forest.enqueue("work", delay="2 seconds", queue="lies")
    [failing] = forest.enqueue("fail", args={"times": 1}, queue="lies")
    [timed] = forest.enqueue("work", args={"seconds": SWEPT}, timeout="60 seconds", queue="lies")
    forest.until_all_ended()
    assert forest.counts() == {"succeeded": 34}
    row = forest.row(later)
    assert row["started_at"] >= row["run_at"], "it began before its time"
    assert SWEPT - 0.1 < forest.row(timed)["duration"] < SWEPT + 20
    lost = forest.db.execute("SELECT count(*) FROM pgworkers.attempt WHERE verdict <> 'error'").fetchone()
    assert lost == (0,), "nobody was rescued"
    assert forest.leader() is honest, "nobody was deposed"
    assert liar.process.poll() is None
    [left] = forest.enqueue("work", args={"seconds": 60.0}, queue="lies", max_crashes=1)
    wait_for(lambda: forest.state(left) == "running")
    liar.signal(signal.SIGKILL)
    gone = forest.until(left, "dead", timeout=T_HOST + BUSY)  # nor does a lie keep the leases of a dead host
    assert gone["verdict"] == "host_lost"
    assert audit(forest.db, forest.ledger, [clock, *jobs, later, failing, timed, left]) == []
