"""Many masters: workers retuned while they run, totals and limits over the cluster that the ledger confirms."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from support.cluster import UNHURRIED, Cluster, Master, wait_for
from support.ledger import audit, most_at_once, read


def kill(pid: int, deaths: dict[int, int]) -> None:
    """SIGKILL, and note when: whatever it ran ended then."""
    deaths[pid] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.kill(pid, signal.SIGKILL)


def kill_host(master: Master, deaths: dict[int, int]) -> None:
    workers = master.worker_pids()
    kill(master.pid, deaths)
    deaths |= dict.fromkeys(workers, deaths[master.pid])
    master.wait()


def count_workers(master: Master, queue: str = "default") -> int:
    return len(master.worker_pids(f"{queue}/"))


def started(cluster: Cluster) -> int:
    return sum(entry.kind == "START" for entry in read(cluster.ledger))


# -- one host ------------------------------------------------------------------------------------------------------


def test_a_queue_is_scaled_up_and_down_by_its_row_without_a_restart(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2")
    before = master.supervisor_pids()
    cluster.db.execute("UPDATE pgworkers.queue SET workers = 5 WHERE name = 'default'")
    wait_for(lambda: count_workers(master) == 5)
    cluster.db.execute("UPDATE pgworkers.queue SET workers = 1 WHERE name = 'default'")
    wait_for(lambda: count_workers(master) == 1)
    cluster.db.execute("UPDATE pgworkers.queue SET workers = NULL WHERE name = 'default'")
    wait_for(lambda: count_workers(master) == 2)
    assert master.supervisor_pids() == before
    assert "default: 2 -> 5 workers" in master.log()


def test_scaling_down_lets_jobs_finish_and_starts_no_others(cluster: Cluster) -> None:
    master = cluster.start(queues="default:3")
    jobs = cluster.enqueue("work", 3, args={"seconds": 1.5})
    wait_for(lambda: started(cluster) == 3)
    cluster.db.execute("UPDATE pgworkers.queue SET workers = 0 WHERE name = 'default'")
    wait_for(lambda: "3 -> 0 workers" in master.log())
    [waiting] = cluster.enqueue("work")
    wait_for(lambda: count_workers(master) == 0)
    assert [cluster.until(job, "succeeded")["attempt"] for job in jobs] == [1, 1, 1]
    assert cluster.state(waiting) == "ready"
    cluster.db.execute("UPDATE pgworkers.queue SET workers = 1 WHERE name = 'default'")
    cluster.until(waiting, "succeeded")
    assert audit(cluster.db, cluster.ledger, [*jobs, waiting]) == []


def test_a_row_that_vanishes_changes_nothing_and_the_cap_holds(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2", PGWORKERS_MAX_WORKERS="4")
    cluster.db.execute("UPDATE pgworkers.queue SET workers = 100 WHERE name = 'default'")
    wait_for(lambda: count_workers(master) == 4)
    cluster.db.execute("DELETE FROM pgworkers.queue")
    cluster.db.execute("SELECT pg_notify('pgworkers', 'queue:default')")
    [job] = cluster.enqueue("work")
    cluster.until(job, "succeeded")
    assert count_workers(master) == 4


def test_a_throttled_queue_cools_down_as_a_whole_and_goes_on(cluster: Cluster) -> None:
    cluster.start(queues="default:2", PGWORKERS_THROTTLE_DURATION="1s", PGWORKERS_THROTTLE_QUIET_PERIOD="60s")
    [job] = cluster.enqueue("steer", args={"how": "throttle"})
    wait_for(lambda: cluster.db.execute("SELECT throttle_level FROM pgworkers.queue").fetchone() == (1,))
    cooled = "SELECT throttled_until - updated_at >= interval '1 s' FROM pgworkers.queue"
    assert cluster.db.execute(cooled).fetchone() == (True,)
    # for as long as we look at it, however slow we are
    [master] = cluster.masters
    throttled = "queue default is throttled: no job of it starts for "
    wait_for(lambda: throttled in master.log(), what="the line of the throttle")
    wait_for(lambda: "(again when its queue has cooled down)" in master.log(), what="the line of the job")
    assert "again at once" not in master.log()
    cluster.db.execute("UPDATE pgworkers.queue SET throttled_until = now() + interval '1 h'")
    [other] = cluster.enqueue("work")
    assert cluster.state(other) == "ready"
    cluster.db.execute("UPDATE pgworkers.queue SET throttled_until = now()")
    row = cluster.until(job, "succeeded")
    assert row["attempt"] == 1, "a throttle costs no attempt"
    cluster.until(other, "succeeded")
    assert cluster.db.execute("SELECT throttle_level FROM pgworkers.queue").fetchone() == (1,)
    cluster.db.execute("UPDATE pgworkers.queue SET throttled_until = now() - interval '61 s'")

    def forgiven() -> bool:
        cluster.enqueue("work")
        return cluster.db.execute("SELECT throttle_level FROM pgworkers.queue").fetchone() == (0,)

    wait_for(forgiven, what="a success after the grace resets the throttles")


# -- a total over all hosts -------------------------------------------------------------------------------------------


def grants(cluster: Cluster) -> list[int]:
    return sorted(
        row[0] for row in cluster.db.execute("SELECT granted FROM pgworkers.cluster_slots").fetchall()
    )


def test_six_workers_on_three_hosts_are_two_each_and_three_when_one_is_killed(cluster: Cluster) -> None:
    masters = [cluster.start(queues="default:c6", wait=False) for _ in range(3)]
    wait_for(lambda: [count_workers(m) for m in masters] == [2, 2, 2])
    jobs = cluster.enqueue("work", 60, args={"seconds": 0.3})
    wait_for(lambda: started(cluster) > 6)
    killed = masters.pop(0)
    deaths: dict[int, int] = {}
    kill_host(killed, deaths)
    wait_for(lambda: [count_workers(m) for m in masters] == [3, 3])
    cluster.until_all_ended()
    assert most_at_once(cluster.ledger, deaths) <= 6
    assert audit(cluster.db, cluster.ledger, jobs) == []


@pytest.mark.long
def test_a_rolling_restart_never_exceeds_the_total(cluster: Cluster) -> None:
    masters = [cluster.start(queues="default:c4", wait=False) for _ in range(2)]
    wait_for(lambda: [count_workers(m) for m in masters] == [2, 2])
    jobs = cluster.enqueue("work", 60, args={"seconds": 0.25})
    for old in masters:
        before = started(cluster)
        wait_for(lambda b=before: started(cluster) > b + 4)
        cluster.start(queues="default:c4", wait=False)
        old.signal(signal.SIGTERM)
    for old in masters:
        assert old.wait() == 0
    cluster.until_all_ended()
    assert most_at_once(cluster.ledger, {}) <= 4
    wait_for(lambda: grants(cluster) == [2, 2])
    assert audit(cluster.db, cluster.ledger, jobs) == []


def test_a_host_alone_has_all_and_gives_half_away_when_another_comes(cluster: Cluster) -> None:
    first = cluster.start(queues="default:c4", wait=False)
    wait_for(lambda: count_workers(first) == 4)
    jobs = cluster.enqueue("work", 30, args={"seconds": 0.4})
    wait_for(lambda: started(cluster) >= 4)
    second = cluster.start(queues="default:c4", wait=False)
    wait_for(lambda: (count_workers(first), count_workers(second)) == (2, 2))
    cluster.until_all_ended()
    assert most_at_once(cluster.ledger, {}) <= 4
    assert audit(cluster.db, cluster.ledger, jobs) == []


@pytest.mark.long
def test_a_host_that_was_frozen_past_its_lease_has_lost_its_share_and_knows_it(cluster: Cluster) -> None:
    frozen, other = (cluster.start(queues="default:c4", wait=False) for _ in range(2))
    wait_for(lambda: (count_workers(frozen), count_workers(other)) == (2, 2))
    jobs = cluster.enqueue("work", 4, args={"seconds": 0.2})
    wait_for(lambda: started(cluster) >= 2)
    frozen.signal(signal.SIGSTOP)
    wait_for(lambda: count_workers(other) == 4)
    jobs += cluster.enqueue("work", 40, args={"seconds": 0.3})
    wait_for(lambda: started(cluster) >= 12)
    frozen.signal(signal.SIGCONT)
    wait_for(lambda: (count_workers(frozen), count_workers(other)) == (2, 2))
    cluster.until_all_ended()
    assert most_at_once(cluster.ledger, {}) <= 4


def test_an_operator_turns_a_queue_into_a_shared_one_and_back(cluster: Cluster) -> None:
    masters = [cluster.start(queues="default:3") for _ in range(2)]
    cluster.db.execute("UPDATE pgworkers.queue SET cluster_workers = 2")
    wait_for(lambda: [count_workers(m) for m in masters] == [1, 1])
    cluster.db.execute("UPDATE pgworkers.queue SET cluster_workers = NULL")
    wait_for(lambda: [count_workers(m) for m in masters] == [3, 3])


# -- concurrency ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_key_of_two_on_twenty_workers_and_two_hosts_with_random_kills_never_runs_three(
    cluster: Cluster,
) -> None:
    rand = random.Random(3)
    masters = [cluster.start(queues="default:10") for _ in range(2)]
    keyed = cluster.enqueue("tenant", 24, args={"seconds": 0.3}, concurrency_key="tenant:7", max_crashes=50)
    free = cluster.enqueue("work", 60, args={"seconds": 0.05}, max_crashes=50)
    deaths: dict[int, int] = {}
    while len(deaths) < 8:
        busy = [pid for master in masters for pid, _ in master.titles("tenant")]
        if busy:
            kill(rand.choice(busy), deaths)
        elif not cluster.db.execute("SELECT FROM pgworkers.job WHERE task = 'tenant'").fetchone():
            keyed += cluster.enqueue(
                "tenant", 6, args={"seconds": 0.3}, concurrency_key="tenant:7", max_crashes=50
            )
    cluster.until_all_ended(timeout=90)
    assert most_at_once(cluster.ledger, deaths, keyed) == 2
    assert audit(cluster.db, cluster.ledger, keyed + free) == []
    assert cluster.counts() == {"succeeded": len(keyed) + len(free)}
    again = cluster.enqueue("tenant", 2, args={"seconds": 1.0}, concurrency_key="tenant:7")
    wait_for(lambda: len(running(cluster, again)) == 2, what="no slot leaked: both run at once")


def running(cluster: Cluster, jobs: list[int]) -> list[int]:
    rows = cluster.db.execute(
        "SELECT id FROM pgworkers.job WHERE state = 'running' AND id = ANY (%s)", [jobs]
    )
    return [row[0] for row in rows.fetchall()]


def quiet(cluster: Cluster) -> bool:
    """True if no host has claimed for a while; rechecks of a claim that skipped jobs come sooner than that."""
    row = cluster.db.execute(
        "SELECT bool_and(state = 'idle' AND clock_timestamp() - state_change > interval '2 seconds')"
        " FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgworkers claim'"
    ).fetchone()
    return row is not None and row[0] is True


def test_what_waits_for_a_place_begins_when_the_one_before_it_has_ended_and_not_by_the_poll(
    cluster: Cluster,
) -> None:
    """The poll would be in an hour, and the queue is known to be dry, so no host would claim."""
    cluster.start(
        queues="default:3", PGWORKERS_POLL_INTERVAL="1h", PGWORKERS_RENEW_INTERVAL="5s", **UNHURRIED
    )
    [first] = cluster.enqueue("gate", concurrency_key="x")
    wait_for(lambda: running(cluster, [first]))
    with (
        cluster.db.transaction()
    ):  # so that one notification is for both, and one claim passes the first one by
        [second] = cluster.enqueue("work", concurrency_key="x")
        [free] = cluster.enqueue("work")
    cluster.until(free, "succeeded")
    wait_for(lambda: quiet(cluster), what="nobody looks any more")
    assert cluster.state(second) == "ready"
    cluster.open_gate()
    cluster.until(second, "succeeded")
    ledger = [(entry.kind, entry.job) for entry in read(cluster.ledger) if entry.job != free]
    assert ledger == [("START", first), ("END", first), ("START", second), ("END", second)]
    assert audit(cluster.db, cluster.ledger, [first, second, free]) == []


@pytest.mark.long
def test_the_slots_of_a_killed_host_come_back(cluster: Cluster) -> None:
    first = cluster.start(queues="default:4")
    held = cluster.enqueue("narrow", 2, args={"seconds": 60})
    wait_for(lambda: len(running(cluster, held)) == 2)
    deaths: dict[int, int] = {}
    second = cluster.start(queues="default:4")
    after = cluster.enqueue("narrow", 3)
    [free] = cluster.enqueue("work")
    cluster.until(free, "succeeded")
    assert running(cluster, after) == []
    kill_host(first, deaths)
    cluster.db.execute("UPDATE pgworkers.job SET args = '{}' WHERE id = ANY (%s)", [held])
    cluster.until_all_ended()
    assert most_at_once(cluster.ledger, deaths, held + after) <= 2
    assert cluster.counts() == {"succeeded": 6}
    assert second.terminate() == 0


# -- ageing -----------------------------------------------------------------------------------------------------------


def test_low_priority_is_not_starved_by_a_stream_of_higher(cluster: Cluster) -> None:
    [low] = cluster.enqueue("work", priority=-10)
    cluster.db.execute("UPDATE pgworkers.job SET run_at = now() - interval '1 minute' WHERE id = %s", [low])
    cluster.enqueue("work", 1000, priority=5, args={"seconds": 0.005})
    cluster.start(queues="default:1", PGWORKERS_AGEING_DELAY="0.5s")

    def done() -> bool:
        backlog = cluster.db.execute("SELECT count(*) FROM pgworkers.job").fetchone()[0]
        if backlog < 200:
            cluster.enqueue("work", 50, priority=5, args={"seconds": 0.005})
        return cluster.state(low) == "succeeded"

    wait_for(done)
    passed = """
        SELECT count(*) FROM pgworkers.jobs high, pgworkers.jobs low
         WHERE low.id = %s AND high.priority = 5 AND high.run_at < low.started_at
           AND (high.started_at IS NULL OR high.started_at > low.started_at)
    """
    assert cluster.db.execute(passed, [low]).fetchone()[0] > 0, "it ran when there was nothing else to do"
    gone = cluster.db.execute("DELETE FROM pgworkers.job WHERE state = 'ready' RETURNING id").fetchall()
    cluster.enqueued -= {job for (job,) in gone}
