"""Many masters: workers retuned while they run, totals and limits over the cluster that the ledger confirms."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from support.cluster import UNHURRIED, Forest, Master, wait_for
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


def crew(master: Master, queue: str = "default") -> int:
    return len(master.worker_pids(f"{queue}/"))


def started(forest: Forest) -> int:
    return sum(entry.kind == "START" for entry in read(forest.ledger))


# -- one host ------------------------------------------------------------------------------------------------------


def test_a_queue_is_scaled_up_and_down_by_its_row_without_a_restart(forest: Forest) -> None:
    master = forest.start(queues="default:2")
    before = master.supervisor_pids()
    forest.db.execute("UPDATE pgworkers.queue SET workers = 5 WHERE name = 'default'")
    wait_for(lambda: crew(master) == 5)
    forest.db.execute("UPDATE pgworkers.queue SET workers = 1 WHERE name = 'default'")
    wait_for(lambda: crew(master) == 1)
    forest.db.execute("UPDATE pgworkers.queue SET workers = NULL WHERE name = 'default'")
    wait_for(lambda: crew(master) == 2)
    assert master.supervisor_pids() == before
    assert "default: 2 -> 5 workers" in master.log()


def test_scaling_down_lets_jobs_finish_and_starts_no_others(forest: Forest) -> None:
    master = forest.start(queues="default:3")
    jobs = forest.enqueue("work", 3, args={"seconds": 1.5})
    wait_for(lambda: started(forest) == 3)
    forest.db.execute("UPDATE pgworkers.queue SET workers = 0 WHERE name = 'default'")
    wait_for(lambda: "3 -> 0 workers" in master.log())
    [waiting] = forest.enqueue("work")
    wait_for(lambda: crew(master) == 0)
    assert [forest.until(job, "succeeded")["attempt"] for job in jobs] == [1, 1, 1]
    assert forest.state(waiting) == "ready"
    forest.db.execute("UPDATE pgworkers.queue SET workers = 1 WHERE name = 'default'")
    forest.until(waiting, "succeeded")
    assert audit(forest.db, forest.ledger, [*jobs, waiting]) == []


def test_a_row_that_vanishes_changes_nothing_and_the_cap_holds(forest: Forest) -> None:
    master = forest.start(queues="default:2", PGWORKERS_MAX_WORKERS="4")
    forest.db.execute("UPDATE pgworkers.queue SET workers = 100 WHERE name = 'default'")
    wait_for(lambda: crew(master) == 4)
    forest.db.execute("DELETE FROM pgworkers.queue")
    forest.db.execute("SELECT pg_notify('pgworkers', 'queue:default')")
    [job] = forest.enqueue("work")
    forest.until(job, "succeeded")
    assert crew(master) == 4


def test_a_throttled_queue_cools_down_as_a_whole_and_goes_on(forest: Forest) -> None:
    forest.start(queues="default:2", PGWORKERS_THROTTLE_DURATION="1s", PGWORKERS_THROTTLE_QUIET_PERIOD="60s")
    [job] = forest.enqueue("steer", args={"how": "throttle"})
    wait_for(lambda: forest.db.execute("SELECT throttle_level FROM pgworkers.queue").fetchone() == (1,))
    cooled = "SELECT throttled_until - updated_at >= interval '1 s' FROM pgworkers.queue"
    assert forest.db.execute(cooled).fetchone() == (True,)
    # for as long as we look at it, however slow we are
    [master] = forest.masters
    throttled = "queue default is throttled: no job of it starts for "
    wait_for(lambda: throttled in master.log(), what="the line of the throttle")
    wait_for(lambda: "(again when its queue has cooled down)" in master.log(), what="the line of the job")
    assert "again at once" not in master.log()
    forest.db.execute("UPDATE pgworkers.queue SET throttled_until = now() + interval '1 h'")
    [other] = forest.enqueue("work")
    assert forest.state(other) == "ready"
    forest.db.execute("UPDATE pgworkers.queue SET throttled_until = now()")
    row = forest.until(job, "succeeded")
    assert row["attempt"] == 1, "a throttle costs no attempt"
    forest.until(other, "succeeded")
    assert forest.db.execute("SELECT throttle_level FROM pgworkers.queue").fetchone() == (1,)
    forest.db.execute("UPDATE pgworkers.queue SET throttled_until = now() - interval '61 s'")

    def forgiven() -> bool:
        forest.enqueue("work")
        return forest.db.execute("SELECT throttle_level FROM pgworkers.queue").fetchone() == (0,)

    wait_for(forgiven, what="a success after the grace resets the throttles")


# -- a total over all hosts -------------------------------------------------------------------------------------------


def grants(forest: Forest) -> list[int]:
    return sorted(
        row[0] for row in forest.db.execute("SELECT granted FROM pgworkers.cluster_slots").fetchall()
    )


def test_six_workers_on_three_hosts_are_two_each_and_three_when_one_is_killed(forest: Forest) -> None:
    masters = [forest.start(queues="default:c6", wait=False) for _ in range(3)]
    wait_for(lambda: [crew(m) for m in masters] == [2, 2, 2])
    jobs = forest.enqueue("work", 60, args={"seconds": 0.3})
    wait_for(lambda: started(forest) > 6)
    killed = masters.pop(0)
    deaths: dict[int, int] = {}
    kill_host(killed, deaths)
    wait_for(lambda: [crew(m) for m in masters] == [3, 3])
    forest.until_all_ended()
    assert most_at_once(forest.ledger, deaths) <= 6
    assert audit(forest.db, forest.ledger, jobs) == []


@pytest.mark.long
def test_a_rolling_restart_never_exceeds_the_total(forest: Forest) -> None:
    masters = [forest.start(queues="default:c4", wait=False) for _ in range(2)]
    wait_for(lambda: [crew(m) for m in masters] == [2, 2])
    jobs = forest.enqueue("work", 60, args={"seconds": 0.25})
    for old in masters:
        before = started(forest)
        wait_for(lambda b=before: started(forest) > b + 4)
        forest.start(queues="default:c4", wait=False)
        old.signal(signal.SIGTERM)
    for old in masters:
        assert old.wait() == 0
    forest.until_all_ended()
    assert most_at_once(forest.ledger, {}) <= 4
    wait_for(lambda: grants(forest) == [2, 2])
    assert audit(forest.db, forest.ledger, jobs) == []


def test_a_host_alone_has_all_and_gives_half_away_when_another_comes(forest: Forest) -> None:
    first = forest.start(queues="default:c4", wait=False)
    wait_for(lambda: crew(first) == 4)
    jobs = forest.enqueue("work", 30, args={"seconds": 0.4})
    wait_for(lambda: started(forest) >= 4)
    second = forest.start(queues="default:c4", wait=False)
    wait_for(lambda: (crew(first), crew(second)) == (2, 2))
    forest.until_all_ended()
    assert most_at_once(forest.ledger, {}) <= 4
    assert audit(forest.db, forest.ledger, jobs) == []


@pytest.mark.long
def test_a_host_that_was_frozen_past_its_lease_has_lost_its_share_and_knows_it(forest: Forest) -> None:
    frozen, other = (forest.start(queues="default:c4", wait=False) for _ in range(2))
    wait_for(lambda: (crew(frozen), crew(other)) == (2, 2))
    jobs = forest.enqueue("work", 4, args={"seconds": 0.2})
    wait_for(lambda: started(forest) >= 2)
    frozen.signal(signal.SIGSTOP)
    wait_for(lambda: crew(other) == 4)
    jobs += forest.enqueue("work", 40, args={"seconds": 0.3})
    wait_for(lambda: started(forest) >= 12)
    frozen.signal(signal.SIGCONT)
    wait_for(lambda: (crew(frozen), crew(other)) == (2, 2))
    forest.until_all_ended()
    assert most_at_once(forest.ledger, {}) <= 4


def test_an_operator_turns_a_queue_into_a_shared_one_and_back(forest: Forest) -> None:
    masters = [forest.start(queues="default:3") for _ in range(2)]
    forest.db.execute("UPDATE pgworkers.queue SET cluster_workers = 2")
    wait_for(lambda: [crew(m) for m in masters] == [1, 1])
    forest.db.execute("UPDATE pgworkers.queue SET cluster_workers = NULL")
    wait_for(lambda: [crew(m) for m in masters] == [3, 3])


# -- concurrency ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_key_of_two_on_twenty_workers_and_two_hosts_with_random_kills_never_runs_three(
    forest: Forest,
) -> None:
    rand = random.Random(3)
    masters = [forest.start(queues="default:10") for _ in range(2)]
    keyed = forest.enqueue("tenant", 24, args={"seconds": 0.3}, concurrency_key="tenant:7", max_crashes=50)
    free = forest.enqueue("work", 60, args={"seconds": 0.05}, max_crashes=50)
    deaths: dict[int, int] = {}
    while len(deaths) < 8:
        busy = [pid for master in masters for pid, _ in master.titles("tenant")]
        if busy:
            kill(rand.choice(busy), deaths)
        elif not forest.db.execute("SELECT FROM pgworkers.job WHERE task = 'tenant'").fetchone():
            keyed += forest.enqueue(
                "tenant", 6, args={"seconds": 0.3}, concurrency_key="tenant:7", max_crashes=50
            )
    forest.until_all_ended(timeout=90)
    assert most_at_once(forest.ledger, deaths, keyed) == 2
    assert audit(forest.db, forest.ledger, keyed + free) == []
    assert forest.counts() == {"succeeded": len(keyed) + len(free)}
    again = forest.enqueue("tenant", 2, args={"seconds": 1.0}, concurrency_key="tenant:7")
    wait_for(lambda: len(running(forest, again)) == 2, what="no slot leaked: both run at once")


def running(forest: Forest, jobs: list[int]) -> list[int]:
    rows = forest.db.execute("SELECT id FROM pgworkers.job WHERE state = 'running' AND id = ANY (%s)", [jobs])
    return [row[0] for row in rows.fetchall()]


def quiet(forest: Forest) -> bool:
    """True if no host has claimed for a while; rechecks of a claim that skipped jobs come sooner than that."""
    row = forest.db.execute(
        "SELECT bool_and(state = 'idle' AND clock_timestamp() - state_change > interval '2 seconds')"
        " FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgworkers claim'"
    ).fetchone()
    return row is not None and row[0] is True


def test_what_waits_for_a_place_begins_when_the_one_before_it_has_ended_and_not_by_the_poll(
    forest: Forest,
) -> None:
    """The poll would be in an hour, and the queue is known to be dry, so no host would claim."""
    forest.start(queues="default:3", PGWORKERS_POLL_INTERVAL="1h", PGWORKERS_RENEW_INTERVAL="5s", **UNHURRIED)
    [first] = forest.enqueue("gate", concurrency_key="x")
    wait_for(lambda: running(forest, [first]))
    with (
        forest.db.transaction()
    ):  # so that one notification is for both, and one claim passes the first one by
        [second] = forest.enqueue("work", concurrency_key="x")
        [free] = forest.enqueue("work")
    forest.until(free, "succeeded")
    wait_for(lambda: quiet(forest), what="nobody looks any more")
    assert forest.state(second) == "ready"
    forest.open_gate()
    forest.until(second, "succeeded")
    ledger = [(entry.kind, entry.job) for entry in read(forest.ledger) if entry.job != free]
    assert ledger == [("START", first), ("END", first), ("START", second), ("END", second)]
    assert audit(forest.db, forest.ledger, [first, second, free]) == []


@pytest.mark.long
def test_the_slots_of_a_killed_host_come_back(forest: Forest) -> None:
    first = forest.start(queues="default:4")
    held = forest.enqueue("narrow", 2, args={"seconds": 60})
    wait_for(lambda: len(running(forest, held)) == 2)
    deaths: dict[int, int] = {}
    second = forest.start(queues="default:4")
    after = forest.enqueue("narrow", 3)
    [free] = forest.enqueue("work")
    forest.until(free, "succeeded")
    assert running(forest, after) == []
    kill_host(first, deaths)
    forest.db.execute("UPDATE pgworkers.job SET args = '{}' WHERE id = ANY (%s)", [held])
    forest.until_all_ended()
    assert most_at_once(forest.ledger, deaths, held + after) <= 2
    assert forest.counts() == {"succeeded": 6}
    assert second.terminate() == 0


# -- ageing -----------------------------------------------------------------------------------------------------------


def test_low_priority_is_not_starved_by_a_stream_of_higher(forest: Forest) -> None:
    [low] = forest.enqueue("work", priority=-10)
    forest.db.execute("UPDATE pgworkers.job SET run_at = now() - interval '1 minute' WHERE id = %s", [low])
    forest.enqueue("work", 1000, priority=5, args={"seconds": 0.005})
    forest.start(queues="default:1", PGWORKERS_AGEING_DELAY="0.5s")

    def done() -> bool:
        backlog = forest.db.execute("SELECT count(*) FROM pgworkers.job").fetchone()[0]
        if backlog < 200:
            forest.enqueue("work", 50, priority=5, args={"seconds": 0.005})
        return forest.state(low) == "succeeded"

    wait_for(done)
    passed = """
        SELECT count(*) FROM pgworkers.jobs high, pgworkers.jobs low
         WHERE low.id = %s AND high.priority = 5 AND high.run_at < low.started_at
           AND (high.started_at IS NULL OR high.started_at > low.started_at)
    """
    assert forest.db.execute(passed, [low]).fetchone()[0] > 0, "it ran when there was nothing else to do"
    gone = forest.db.execute("DELETE FROM pgworkers.job WHERE state = 'ready' RETURNING id").fetchall()
    forest.enqueued -= {job for (job,) in gone}
