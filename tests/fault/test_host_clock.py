"""Row 70: a host whose wall clock lies, or jumps while jobs run. It is really moved, for the whole tree of that host."""

from __future__ import annotations

import signal
import time
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise

import pytest
from support.clock_checks import BEAT, SHOWN, logged_offsets, more_ticks, refuse_negatives, ticks, verdicts
from support.cluster import Cluster, wait_for
from support.shifted_clock import ShiftedClock
from support.time_bounds import BUSY, T_HOST, T_LEAD

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # on a busy machine

#: A job so long that the sweep looks at its host several times, and a candidate at its leader.
SWEPT = T_HOST + T_LEAD
#: A day and an hour: log lines show the time of the day, so a shift by whole days would not be seen in them.
HOUR, DAY = 3600.0, 86400.0 + 3600.0
#: How far the wall clock was from the one that measures, and how much that changed while it looked.
CLOCK = """
@app.task
def clock(ctx: Ctx, seconds: float = 0.0) -> list[float]:
    note(ctx, "START")
    away, until = [], time.monotonic() + seconds
    while not away or time.monotonic() < until:
        away.append(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
        time.sleep(0.005)
    note(ctx, "END")
    return [min(away), max(away)]
"""


@pytest.mark.parametrize("shift", [HOUR, -HOUR, DAY, -DAY, None], ids=["+1h", "-1h", "+1d", "-1d", "jumping"])
def test_row_70_the_wall_clock_of_a_host_decides_nothing(
    cluster: Cluster, wall: ShiftedClock, shift: float | None
) -> None:
    cluster.declare(CLOCK)
    cluster.declare(BEAT.format("all"))
    truth = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    honest = cluster.start(queues="default:2", **SHOWN)
    wait_for(lambda: cluster.leader() is honest)  # it judges who is lost, and never itself
    wall.move(DAY if shift is None else shift)
    liar = cluster.start(queues="default:2,lies:1", **SHOWN, **wall.environ)

    with wall.restless(-DAY, 0.0, DAY, HOUR, -HOUR) if shift is None else nullcontext():
        [clock] = cluster.enqueue("clock", queue="lies", args={"seconds": 1.0})
        jobs = cluster.enqueue("work", 30, args={"seconds": 0.05})
        [later] = cluster.enqueue("work", delay="2 seconds", queue="lies")
        [failing] = cluster.enqueue("fail", args={"times": 1}, queue="lies")
        [endless] = cluster.enqueue("hang", timeout="1 second", max_attempts=1, queue="lies")
        times = {"timeout": "60 seconds", "deadline": "90 seconds", "expires": "60 seconds"}
        [timed] = cluster.enqueue("work", args={"seconds": SWEPT}, queue="lies", **times)
        mine = [clock, *jobs, later, failing, endless, timed]
        wait_for(lambda: all(cluster.state(job) in ("succeeded", "dead") for job in mine), what="all ended")
        assert verdicts(cluster, "host_lost") == [], "somebody was rescued because of a wall clock"
        assert cluster.leader() is honest, "nobody was deposed"
        assert {cluster.state(job) for job in mine if job != endless} == {"succeeded"}
        assert cluster.row(endless)["verdict"] == "timeout"
        row = cluster.row(later)
        assert timedelta(0) <= row["started_at"] - row["run_at"] < timedelta(seconds=60)
        refuse_negatives(cluster, honest, liar, show=endless)
        assert all(wall.moves(process.pid) for process in liar.processes()), "master, supervisors, workers"
        low, high = cluster.row(clock)["result"]
        seen = logged_offsets(liar)
        if shift is None:
            assert max(seen) - min(seen) > HOUR / 2, (
                "the clock of the master did not jump: nothing was tested"
            )
            assert high - low > DAY, "the clock of the handler did not jump: nothing was tested"
        else:
            assert abs((seen[-1] - shift + 43200) % 86400 - 43200) < 300, (
                "the clock of the master did not lie"
            )
            assert abs(low - truth - shift) < 60, "the clock of the handler did not lie: nothing was tested"

        assert honest.terminate() == 0
        wait_for(lambda: cluster.leader() is liar, what="the liar leads")
        more_ticks(cluster, 3)
        [due] = cluster.enqueue("work", delay="1 second")
        cluster.until(due, "succeeded")
        [last] = cluster.enqueue("work", args={"seconds": 1.0}, queue="lies")
        wait_for(lambda: cluster.state(last) == "running")
        assert liar.terminate() == 0
    assert cluster.state(last) == "succeeded", "a drain waits for it"
    assert verdicts(cluster, "host_lost") == verdicts(cluster, "interrupted") == []
    beats = [row[0] for row in ticks(cluster)]
    assert all(after - before == timedelta(seconds=1) for before, after in pairwise(beats)), "each second"
    late = cluster.db.execute(
        "SELECT max(greatest(fired_at - at, at - fired_at)) FROM pgworkers.tick"
    ).fetchone()
    assert late is not None
    assert late[0] < timedelta(seconds=60), "by the database's clock"


def test_row_70_a_wall_clock_that_is_ahead_keeps_no_lease_of_a_dead_host(
    cluster: Cluster, wall: ShiftedClock
) -> None:
    honest = cluster.start(queues="default:1")
    wait_for(lambda: cluster.leader() is honest)
    wall.move(DAY)
    liar = cluster.start(queues="lies:1", **wall.environ)
    [left] = cluster.enqueue("work", args={"seconds": 60.0}, queue="lies", max_attempts=1)
    wait_for(lambda: cluster.state(left) == "running")
    assert wall.moves(liar.pid)
    liar.signal(signal.SIGKILL)
    assert cluster.until(left, "dead", timeout=T_HOST + BUSY)["verdict"] == "host_lost"
