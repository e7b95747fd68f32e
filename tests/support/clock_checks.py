"""What a clock that lies must not change: no duration below zero, each tick once, who was rescued."""

from __future__ import annotations

import re
import time
import urllib.request
from datetime import datetime

from support.cluster import Cluster, Master, wait_for
from support.command import Command

#: Each second; fill in the policy for missed ticks.
BEAT = 'app.schedule("* * * * * *", name="beat", missed="{}")(work)'
#: So that `measured` has something to read.
SHOWN = {"PGWORKERS_METRICS_ADDRESS": "127.0.0.1:0", "PGWORKERS_QUEUE_DEPTH_INTERVAL": "0.5s"}
BELOW_ZERO = """
SELECT 'history', id, duration FROM pgworkers.history WHERE least(duration, cpu_seconds) < 0
UNION ALL SELECT 'attempt', job_id, duration FROM pgworkers.attempt WHERE least(duration, cpu_seconds) < 0
UNION ALL SELECT 'minute_statistics', count, seconds FROM pgworkers.minute_statistics WHERE least(count, seconds, cpu) < 0
"""


def measured(master: Master) -> dict[str, float]:
    """What it shows to Prometheus."""
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    text = urllib.request.urlopen(lines[0].split()[1], timeout=60).read().decode()
    samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def logged_offsets(master: Master) -> list[float]:
    """Seconds from now to the time of day of each log line, which the wall clock of the master has written."""
    now = time.localtime()
    true = now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec
    found = re.findall(r"^(\d\d):(\d\d):(\d\d) ", master.log(), re.MULTILINE)
    return [float(int(h) * 3600 + int(m) * 60 + int(s) - true) for h, m, s in found]


def verdicts(cluster: Cluster, verdict: str) -> list[int]:
    rows = cluster.db.execute("SELECT job_id FROM pgworkers.attempt WHERE verdict = %s", (verdict,))
    return [row[0] for row in rows]


def refuse_negatives(cluster: Cluster, *masters: Master, show: int | None = None) -> None:
    """No time that something took is below zero: in the tables, the metrics, and what is shown of a job, queues, hosts."""
    wrong = cluster.db.execute(BELOW_ZERO).fetchall()
    assert not wrong, f"took less than nothing: {wrong}"
    for master in masters:
        below = [(name, value) for name, value in measured(master).items() if value < 0]
        assert not below, f"metrics below zero: {below}"
    if show is None:
        return
    command = Command(cluster.directory, PGWORKERS_DSN=cluster.dsn)
    for words in (("jobs", "show", str(show)), ("queues",), ("hosts",)):
        text = command(*words).out
        assert not re.search(r"(?<![\w-])-\d", text), text


def ticks(cluster: Cluster) -> list[tuple[datetime, int]]:
    """Each tick and its job; no tick has two."""
    twice = cluster.db.execute(
        "SELECT meta ->> 'tick' FROM pgworkers.jobs WHERE meta ? 'tick' GROUP BY 1 HAVING count(*) > 1"
    ).fetchall()
    assert not twice, f"ticks were repeated: {twice}"
    return cluster.db.execute(
        "SELECT at, job_id FROM pgworkers.tick WHERE job_id IS NOT NULL ORDER BY at"
    ).fetchall()


def more_ticks(cluster: Cluster, count: int) -> None:
    before = len(ticks(cluster))
    wait_for(lambda: len(ticks(cluster)) >= before + count, what=f"{count} more ticks")
