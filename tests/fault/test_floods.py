"""Rows 80 and 97: hundreds of thousands of jobs, and people who look at them; the others do not notice."""

from __future__ import annotations

import re
import threading
import time
import urllib.request

import pytest
from support.cluster import Cluster, wait_for
from support.command import ForkedCommand
from support.ledger import audit
from support.time_bounds import BUSY, P, S

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

READY, DUE = 200_000, 100_000
#: How old the oldest transaction of a host is; it holds none open, so this is how long its longest statement takes.
OLDEST = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'pgworkers %' AND state <> 'idle'
"""


def test_row_97_a_flood_in_one_queue_does_not_delay_the_others(cluster: Cluster) -> None:
    cluster.start(queues="default:1,flood:1")
    # No host knows the task, so none of these is claimed: they stay ready in front of the others.
    cluster.db.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'flood', 'unknown' FROM generate_series(1, %s)",
        [READY],
    )
    cluster.db.execute(
        "INSERT INTO pgworkers.job (queue, task, state, run_at)"
        " SELECT 'flood', 'unknown', 'scheduled', now() FROM generate_series(1, %s)",
        [DUE],
    )
    oldest, jobs, waits = 0.0, [], []

    def promoted() -> bool:
        nonlocal oldest
        (age,) = cluster.db.execute(OLDEST).fetchone() or (0.0,)
        oldest = max(oldest, age)
        began = time.monotonic()
        [job] = cluster.enqueue("work")
        jobs.append(job)
        wait_for(
            lambda: cluster.state(job) == "succeeded", timeout=P + S + BUSY, what="another queue is served"
        )
        waits.append(time.monotonic() - began)
        left = cluster.db.execute(
            "SELECT EXISTS (SELECT FROM pgworkers.job WHERE state = 'scheduled')"
        ).fetchone()
        return left == (False,)

    wait_for(promoted, timeout=120, what="what was due is ready, batch by batch")
    assert len(waits) > 3, "it was over too soon: nothing was seen"
    assert oldest < S + 1, f"a transaction of {oldest:.2f} s"
    (count,) = cluster.db.execute("SELECT count(*) FROM pgworkers.job WHERE state = 'ready'").fetchone() or (
        0,
    )
    assert count == READY + DUE
    cluster.db.execute("DELETE FROM pgworkers.job")
    assert audit(cluster.db, cluster.ledger, jobs) == []


#: What people and programs look with, again and again.
LOOKS = (
    ("top", "--once"),
    ("jobs", "list"),
    ("jobs", "list", "--queue", "flood", "--state", "ready"),
    ("queues", "list"),
    ("doctor",),
)
SESSIONS = """
SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'pgworkers %%' AND pid = ANY (%s)
"""


def test_row_80_looking_at_large_tables_delays_no_worker(cluster: Cluster) -> None:
    """Each command has a separate session with a timeout; hosts keep theirs and run jobs as without the load."""
    master = cluster.start(
        queues="default:1,flood:1",
        PGWORKERS_METRICS_ADDRESS="127.0.0.1:0",
        PGWORKERS_QUEUE_DEPTH_INTERVAL="0.5s",
    )
    address = wait_for(lambda: re.search(r"^metrics +(\S+)", master.log(), re.MULTILINE), what="its port")[1]
    cluster.db.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'flood', 'unknown' FROM generate_series(1, %s)",
        [READY],
    )
    cluster.db.execute(
        "INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,"
        " max_attempts, max_crashes, created_at, run_at, errors)"
        " SELECT -n, 'succeeded', 'succeeded', 0, 'flood', 'unknown', '{}', 1, 1, 0, 1, 1, now(), now(), '{}'"
        "   FROM generate_series(1, %s) n",
        [READY],
    )
    [first] = cluster.enqueue("work")
    cluster.until(first, "succeeded")
    held = [
        row[0]
        for row in cluster.db.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pgworkers %'"
        )
    ]
    assert held
    enough = threading.Event()
    looks: list[tuple[str, int, str]] = []
    scrapes: list[float] = []

    def look(words: tuple[str, ...]) -> None:
        command = ForkedCommand(
            cluster.directory, PGWORKERS_DSN=cluster.dsn, PGWORKERS_STATEMENT_TIMEOUT=f"{S:g}s"
        )
        while not enough.is_set():
            said = command(*words, code=None)
            looks.append((" ".join(words), said.code, said.err))

    def scrape() -> None:
        while not enough.is_set():
            began = time.monotonic()
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert b"pgworkers_queue_jobs" in answer.read()
            scrapes.append(time.monotonic() - began)

    watchers = [threading.Thread(target=look, args=(words,)) for words in LOOKS]
    watchers.append(threading.Thread(target=scrape))
    for watcher in watchers:
        watcher.start()
    jobs, oldest = [first], 0.0
    try:
        while len(jobs) < 20 or {words for words, code, _ in looks if code != 4} != {
            " ".join(words) for words in LOOKS
        }:
            [job] = cluster.enqueue("work")
            jobs.append(job)
            cluster.until(job, "succeeded", timeout=P + S + BUSY)
            (age,) = cluster.db.execute(OLDEST).fetchone() or (0.0,)
            oldest = max(oldest, age)
            assert len(jobs) < 2000, f"a look that never has an answer: {looks[-20:]}"
    finally:
        enough.set()
        for watcher in watchers:
            watcher.join()
    assert scrapes
    assert max(scrapes) < 2 + BUSY
    for (
        words,
        code,
        err,
    ) in looks:  # 1: the doctor has findings; 4: it was ended, which a busy machine can need
        assert code in (0, 1) or (code == 4 and "did not answer in time" in err), (words, code, err)
    assert {words for words, code, _ in looks if code != 4} == {" ".join(words) for words in LOOKS}
    assert oldest < S + 1, f"a transaction of {oldest:.2f} s"
    assert cluster.db.execute(SESSIONS, [held]).fetchone() == (sorted(held),), "the host lost a session"
    cluster.db.execute("DELETE FROM pgworkers.job")
    cluster.db.execute("DELETE FROM pgworkers.history WHERE id < 0")
    assert audit(cluster.db, cluster.ledger, jobs) == []
