"""Statistics on real rows: hosts add up exactly, percentiles are right within a bucket, old minutes go."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from support.database_host import DatabaseHost

from pgworkers import events
from pgworkers.observe.statistics import Statistics, prune


def started(waited: float) -> events.AttemptStarted:
    return events.AttemptStarted(1, 1, "q", "t", 1, waited)


def ended(duration: float, verdict: str = "succeeded", cpu: float = 0.0) -> events.AttemptEnded:
    return events.AttemptEnded(
        1, 1, "q", "t", "{}", 1, 1, verdict, "succeeded", duration, cpu, 0, None, None
    )  # fmt: skip


def write(host: DatabaseHost, statistics: Statistics) -> int:
    query = statistics.write_query()
    assert query is not None
    rows = host.execute(query)
    statistics.acknowledge()
    return rows


def totals(host: DatabaseHost) -> dict[str, Any]:
    row = host.conn.execute(
        "SELECT sum(started), sum(succeeded), sum(unsuccessful), sum(cpu_seconds) FROM pgworkers.statistics"
    ).fetchone()
    assert row is not None
    return dict(zip(("started", "succeeded", "unsuccessful", "cpu"), row, strict=True))


def test_one_batch_with_counts_by_verdict_and_percentiles(host: DatabaseHost) -> None:
    statistics = Statistics(now=lambda: 30.0)  # the middle of a minute: no row is older than now
    draw = random.Random(7)
    durations = sorted(draw.lognormvariate(0, 1.5) for _ in range(1000))
    for n, duration in enumerate(durations):
        statistics(started(duration / 10))
        statistics(ended(duration, "error" if n % 10 == 0 else "succeeded", cpu=0.5))
    assert write(host, statistics) == 3
    cursor = host.conn.execute("SELECT * FROM pgworkers.statistics")
    (row,) = cursor.fetchall()
    found = dict(zip((column.name for column in cursor.description or ()), row, strict=True))
    assert (found["queue"], found["task"], found["started"]) == ("q", "t", 1000)
    assert found["verdicts"] == {"succeeded": 900, "error": 100}
    assert (found["succeeded"], found["unsuccessful"], found["cpu_seconds"]) == (900, 100, 500.0)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        true = durations[int(share * 1000) - 1]
        assert found[f"duration_{name}"] == pytest.approx(true, rel=0.1)
        assert found[f"wait_{name}"] == pytest.approx(true / 10, rel=0.1)


def test_hosts_that_write_at_once_add_up_exactly(host: DatabaseHost, other: DatabaseHost) -> None:
    def work(each: DatabaseHost) -> None:
        statistics = Statistics(now=lambda: 30.0)
        for _ in range(20):
            for n in range(50):
                statistics(started(n / 7))
                statistics(ended(n / 3, ("succeeded", "error", "timeout")[n % 3]))
            write(each, statistics)

    threads = [threading.Thread(target=work, args=(each,)) for each in (host, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = totals(host)
    assert (found["started"], found["succeeded"], found["unsuccessful"]) == (2000, 680, 1320)
    row = host.conn.execute(
        "SELECT bool_and(count = (SELECT sum(c) FROM unnest(histogram) c)) FROM pgworkers.minute_statistics"
    ).fetchone()
    assert row == (True,), "every job is in exactly one bucket"


def test_an_empty_histogram_and_tiny_times(host: DatabaseHost) -> None:
    row = host.conn.execute(
        "SELECT pgworkers.histogram_percentile('{}', 0.5), pgworkers.histogram_percentile('{0,0}', 0.5),"
        " pgworkers.histogram_percentile('{3}', 0.99)"
    ).fetchone()
    assert row == (None, None, 0.0005)


def test_minutes_go_where_the_clock_of_the_database_says(host: DatabaseHost) -> None:
    clock = [30.0]
    statistics = Statistics(now=lambda: clock[0])
    statistics(started(1.0))
    clock[0] = 330.0
    statistics(started(1.0))
    assert write(host, statistics) == 2
    row = host.conn.execute(
        "SELECT max(minute) - min(minute) = interval '5 minutes' FROM pgworkers.minute_statistics"
    ).fetchone()
    assert row == (True,)


def test_old_minutes_are_deleted_in_bounded_bites(host: DatabaseHost) -> None:
    host.conn.execute(
        "INSERT INTO pgworkers.minute_statistics SELECT now() - n * interval '1 day', 'q', 't', 'started', 1, 1, 0, '{1}'"
        " FROM generate_series(0, 39) n"
    )
    assert [host.execute(prune(30 * 86400.0 + 3600, 4)) for _ in range(4)] == [4, 4, 1, 0]
