"""SIGTERM, SIGINT, SIGQUIT: what finishes, what is given back, and what is left."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.ledger import audit, read
from support.time_bounds import BACKOFF, BUSY, T_HOST, D, K, S


def _boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_sigterm_lets_short_jobs_finish_and_hands_back_the_rest(cluster: Cluster) -> None:
    master = cluster.start(queues="default:4", PGWORKERS_DRAIN_TIMEOUT="4s", **UNHURRIED)
    [one, two, sixty, hung] = [
        *cluster.enqueue("gate", 2),
        *cluster.enqueue("work", args={"seconds": 60}),
        *cluster.enqueue("hang"),
    ]
    wait_for(lambda: len(read(cluster.ledger)) == 4)
    waiting = cluster.enqueue("work", 1000)
    began = _boottime()
    master.signal(signal.SIGTERM)
    wait_for(lambda: "draining" in master.log())
    cluster.open_gate()
    assert master.wait() == 0, master.log()
    assert "gone: drained, 2 jobs stopped and handed back" in master.log().splitlines()[-1]
    assert cluster.state(one) == "succeeded"
    assert cluster.state(two) == "succeeded"
    for job in (sixty, hung):
        row = cluster.row(job)
        assert (row["state"], row["attempt"], row["crashes"]) == ("ready", 0, 0)
        [attempt] = cluster.attempts(job)
        assert attempt["verdict"] == "interrupted"
    assert cluster.counts() == {"succeeded": 2, "ready": 1002}
    assert not [e for e in read(cluster.ledger) if e.kind == "START" and e.at > began], (
        "claimed after the drain began"
    )
    assert not master.processes()
    assert cluster.db.execute("SELECT count(*) FROM pgworkers.host").fetchone() == (0,)
    assert audit(cluster.db, cluster.ledger, [one, two, sixty, hung, *waiting]) == []


def test_sigquit_kills_at_once_and_hands_back(cluster: Cluster) -> None:
    master = cluster.start(
        queues="default:2",
        PGWORKERS_DRAIN_TIMEOUT="60s",
        PGWORKERS_ASK_GRACE="30s",
        PGWORKERS_RAISE_GRACE="30s",
    )
    jobs = cluster.enqueue("hang", 2)
    wait_for(lambda: len(read(cluster.ledger)) == 2)
    master.signal(signal.SIGQUIT)
    assert master.wait(25) == 0, master.log()
    for job in jobs:
        assert (cluster.row(job)["state"], cluster.row(job)["attempt"]) == ("ready", 0)
    assert not master.processes()
    assert "gone: stopped at once, 2 jobs handed back" in master.log().splitlines()[-1]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGQUIT])
def test_a_second_signal_shortens_the_drain(cluster: Cluster, second: int) -> None:
    master = cluster.start(queues="default:1", PGWORKERS_DRAIN_TIMEOUT="60s")
    [job] = cluster.enqueue("work", args={"seconds": 50})
    wait_for(lambda: read(cluster.ledger))
    master.signal(signal.SIGINT)
    wait_for(lambda: "draining" in master.log())
    assert cluster.state(job) == "running"
    master.signal(second)
    assert master.wait(25) == 0, master.log()
    assert cluster.state(job) == "ready"


def test_more_sigterms_change_nothing(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("work", args={"seconds": 1.5})
    wait_for(lambda: read(cluster.ledger))
    for _ in range(5):
        master.signal(signal.SIGTERM)
        time.sleep(0.02)
    assert master.wait() == 0, master.log()
    assert cluster.state(job) == "succeeded"


def test_a_drain_under_load_loses_and_repeats_nothing(cluster: Cluster) -> None:
    jobs = cluster.enqueue("work", 1000, args={"seconds": 0.001})
    for _ in range(3):
        master = cluster.start(queues="default:3")
        seen = len(read(cluster.ledger))
        wait_for(lambda n=seen: len(read(cluster.ledger)) > n + 20 or not cluster.counts().get("ready"))
        assert master.terminate() == 0, master.log()
        assert cluster.db.execute(
            "SELECT count(*) FROM pgworkers.job WHERE state = 'running'"
        ).fetchone() == (0,)
    cluster.start(queues="default:3")
    cluster.until_all_ended()
    assert cluster.counts() == {"succeeded": 1000}
    starts = [e for e in read(cluster.ledger) if e.kind == "START"]
    assert len(starts) == 1000, "a drain repeated a job"
    assert audit(cluster.db, cluster.ledger, jobs) == []


def test_drain_while_the_database_is_down_ends_in_time(own_cluster: Cluster, own_server: object) -> None:
    master = own_cluster.start(queues="default:1")
    [job] = own_cluster.enqueue("work", args={"seconds": 0.5})
    wait_for(lambda: read(own_cluster.ledger))
    own_cluster.db.close()
    own_server.crash()  # type: ignore[attr-defined]
    assert master.terminate(timeout=D + K + 2 * S + BUSY) == 0, master.log()
    own_server.start()  # type: ignore[attr-defined]
    own_cluster.reconnect()
    own_cluster.start(queues="default:1")
    own_cluster.until(job, "succeeded", timeout=T_HOST + BACKOFF + BUSY)
    assert audit(own_cluster.db, own_cluster.ledger, [job]) == []


def test_a_drain_does_not_wait_for_a_supervisor_that_rests_before_its_restart(cluster: Cluster) -> None:
    master = cluster.start(
        queues="default:1", PGWORKERS_RESTART_PERIOD="1800s", PGWORKERS_RESTART_MAX_DELAY="60s"
    )
    cluster.app.write_text("raise RuntimeError('half a deploy')")
    [supervisor] = master.supervisor_pids()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: "half a deploy" in master.log() and not master.supervisor_pids(), what="it rests")
    master.signal(signal.SIGQUIT)
    assert master.wait() == 0, master.log()
    assert not master.processes()
