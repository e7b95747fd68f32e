"""Metrics against the ledger and the tables (I21): what is counted is what happened, neither more nor less."""

from __future__ import annotations

import os
import random
import signal
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
from prometheus_client.parser import text_string_to_metric_families
from support.cluster import Cluster, Master, wait_for
from support.ledger import read

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(address: str) -> Samples:
    text = urllib.request.urlopen(address, timeout=30).read().decode()
    return {
        (sample.name.removeprefix("pgworkers_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(
        value
        for (found, of), value in samples.items()
        if found == name and labels.items() <= dict(of).items()
    )


def differences(db: psycopg.Connection[Any], ledger: Path, samples: Samples, forks: int) -> list[str]:
    """Everything that the metrics of one master, which did all the work, say otherwise. Empty: I21 holds."""
    wrong = []

    def same(what: str, counted: float, happened: float) -> None:
        if counted != happened:
            wrong.append(f"I21 {what}: metrics say {counted:g}, it was {happened:g}")

    ended: Counter[tuple[str, str]] = Counter()
    for task, verdict, count in db.execute(
        "SELECT task, verdict, count(*) FROM pgworkers.attempt GROUP BY 1, 2"
    ).fetchall():
        ended[task, verdict] += count
    for task, count in db.execute(  # successes keep no post-mortem: they are in the history
        "SELECT task, count(*) FROM pgworkers.history WHERE verdict = 'succeeded' GROUP BY 1"
    ).fetchall():
        ended[task, "succeeded"] = count
    counted = {
        (dict(labels)["task"], dict(labels)["verdict"]): value
        for (name, labels), value in samples.items()
        if name == "jobs_finished_total" and value
    }
    for key in sorted(ended.keys() | counted.keys()):
        same(f"ends of {key[0]} by {key[1]}", counted.get(key, 0), ended[key])
    starts = Counter(entry.job for entry in read(ledger) if entry.kind == "START")
    tasks = dict(db.execute("SELECT id, task FROM pgworkers.jobs").fetchall())
    by_task = Counter(dict.fromkeys(tasks.values(), 0))
    for job, count in starts.items():
        by_task[tasks[job]] += count
    for task, count in sorted(by_task.items()):
        begun = total(samples, "jobs_started_total", task=task)
        if begun < count:  # a worker that dies between its order and its first line counts as started
            wrong.append(f"I21 starts of {task}: metrics say {begun:g}, the ledger has {count}")
        same(f"durations of {task}", total(samples, "job_duration_seconds_count", task=task),
             sum(n for (of, _), n in ended.items() if of == task))  # fmt: skip
    same(
        "attempts that were waited for",
        total(samples, "job_wait_seconds_count"),
        total(samples, "jobs_started_total"),
    )
    exits = total(samples, "worker_exits_total")
    same("workers started", total(samples, "worker_starts_total"), exits + forks)
    return wrong


class FaultInjector:
    """Kills, cancels and reloads on a master that works."""

    def __init__(self, cluster: Cluster, master: Master, seed: int) -> None:
        self._forest = cluster
        self._master = master
        self._random = random.Random(seed)
        self.kills = self.cancels = 0

    def kill(self) -> None:
        """One worker, now and then a supervisor."""
        pids = self._master.worker_pids()
        if self._random.random() < 0.1:
            pids = self._master.supervisor_pids() or pids
        if pids:
            try:
                os.kill(self._random.choice(pids), signal.SIGKILL)
                self.kills += 1
            except ProcessLookupError:
                pass

    def cancel(self, jobs: list[int]) -> None:
        for job in jobs:
            self._forest.db.execute("SELECT pgworkers.cancel(%s)", (job,))
            self.cancels += 1


def prove(
    cluster: Cluster, master: Master, address: str, kills: int, seed: int
) -> tuple[list[str], dict[str, int]]:
    """Work, retries, cancels, a reload and kills; then compare. Returns what is wrong and what was done."""
    injector = FaultInjector(cluster, master, seed)
    enqueued = 0
    reloaded = False
    while injector.kills < kills:
        jobs = cluster.enqueue("work", 6, args={"seconds": 0.05})
        fails = cluster.enqueue("fail", 2, max_attempts=3)
        steered = cluster.enqueue(
            "steer", 1, args={"how": random.Random(enqueued).choice(["retry", "snooze", "discard"])}
        )
        hung = cluster.enqueue("hang", 1)
        enqueued += len(jobs) + len(fails) + len(steered) + len(hung)
        for _ in range(6):
            injector.kill()
            time.sleep(0.05)
        injector.cancel([*hung, jobs[-1]])
        if not reloaded and injector.kills >= kills / 2:
            reloaded = True
            master.signal(signal.SIGHUP)
            time.sleep(0.1)
    wait_for(lambda: _settled(cluster, injector), timeout=300, what="all jobs ended")
    wait_for(
        lambda: total(scrape(address), "workers", state="idle") == 2, timeout=60, what="all workers are back"
    )
    time.sleep(0.3)  # older than the text that is given again
    samples = scrape(address)
    alive = int(total(samples, "workers"))
    did = {
        "kills": injector.kills,
        "cancels": injector.cancels,
        "reloads": int(reloaded),
        "enqueued": enqueued,
    }
    return differences(cluster.db, cluster.ledger, samples, alive), did


def _settled(cluster: Cluster, injector: FaultInjector) -> bool:
    """Nothing is left; what hangs and was put back by a kill is cancelled again, what waits for a retry runs now."""
    left = cluster.db.execute("SELECT id, task, state::text FROM pgworkers.job").fetchall()
    injector.cancel([job for job, task, _ in left if task == "hang"])
    cluster.db.execute("UPDATE pgworkers.job SET run_at = now() WHERE state = 'scheduled'")
    time.sleep(0.2)
    return not left
